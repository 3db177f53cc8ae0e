"""A file of which only what is read is there: parts of an object in a store, asked for as they are needed."""

import io
from collections.abc import Callable, Sequence
from typing import Any

_STEP_BYTES, _STEP_MOST_BYTES = 1 << 17, 1 << 22
"""What is asked for at once; whoever reads on from there gets more each time."""
_PARTS = 4
"""Parts that are kept, the latest ones: a reader goes forth, and at most a little back."""


class Ranged(io.RawIOBase):
    """Bytes of an object; `fetch` brings those from a start to a stop."""

    def __init__(self, nbytes: int, fetch: Callable[[int, int], Any], parts: Sequence[tuple[int, Any]] = ()) -> None:
        super().__init__()
        self._nbytes, self._fetch, self._at = nbytes, fetch, 0
        self._parts = list(parts)
        self._step, self._end = _STEP_BYTES, 0

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def tell(self) -> int:
        """The place in the object."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place in the object."""
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._nbytes}[whence]
        return self._at

    def readinto(self, into: Any) -> int:
        """Some of the bytes from here on; none at the end."""
        wanted = min(len(into), self._nbytes - self._at)
        if wanted <= 0:
            return 0
        start, data = self._part(wanted)
        found = memoryview(data)[self._at - start :][:wanted]
        into[: len(found)] = found
        self._at += len(found)
        return len(found)

    def _part(self, wanted: int) -> tuple[int, Any]:
        """A part that has the next byte."""
        for start, data in self._parts:
            if start <= self._at < start + len(data):
                return start, data
        self._step = min(_STEP_MOST_BYTES, 2 * self._step) if self._at == self._end else _STEP_BYTES
        self._end = min(self._nbytes, self._at + max(wanted, self._step))
        found = (self._at, self._fetch(self._at, self._end))
        self._parts = [*self._parts[1 - _PARTS :], found]
        return found
