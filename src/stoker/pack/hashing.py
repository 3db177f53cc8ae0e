"""A file whose bytes are hashed while they are still in the processor's cache."""

import hashlib
from typing import Any


class Hashing:
    """Writes to a file, and keeps the SHA-256 of what it wrote in `hashed`."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.hashed = hashlib.sha256()

    def write(self, data: Any) -> None:
        """Write all of it."""
        self.hashed.update(data)
        self._file.write(data)
