"""Byte ranges of a store's objects: each is asked for, checked and kept in the cache like an object of its own."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from stoker.errors import DataError, TruncatedError
from stoker.loader.source.blocks import Ints
from stoker.loader.source.manifest import Manifest


class Listed(Protocol):
    """What can be asked for: whole objects, or pieces of them."""

    @property
    def sizes(self) -> Ints:
        """The bytes of each."""

    @property
    def keys(self) -> Any:
        """What each is called in the cache, as an Arrow array."""

    def __len__(self) -> int: ...

    def key(self, row: int) -> str:
        """What one is called in the cache."""

    def tag(self, row: int) -> str:
        """The tag of its object."""

    def address(self, row: int) -> str:
        """The address of its object, for people."""

    def span(self, row: int) -> tuple[str, int, int]:
        """The key of its object, and where it begins and ends in that."""

    def object_bytes(self, row: int) -> int:
        """The size of its object."""

    def has_md5(self, row: int) -> bool:
        """True if the tag tells whether a body is right."""

    def wrong(self, row: int, data: Any) -> DataError | None:
        """Why a body is not what was listed; None if it is, as far as can be told."""

    def empty(self, row: int) -> DataError | None:
        """An error for what has no byte."""


@dataclass(frozen=True)
class Pieces:
    """Ranges of listed objects: piece i is `sizes[i]` bytes from `starts[i]` on of object `objects[i]`."""

    listed: Manifest
    objects: Ints
    starts: Ints
    sizes: Ints

    @classmethod
    def of(cls, listed: Manifest, ranges: Iterable[tuple[int, int, int]]) -> "Pieces":
        """From (object, start, stop) of each."""
        columns = np.array(list(ranges), np.int64).reshape(-1, 3)
        return cls(listed, columns[:, 0], columns[:, 1], columns[:, 2] - columns[:, 1])

    def __len__(self) -> int:
        return len(self.sizes)

    @cached_property
    def keys(self) -> Any:
        """What each is called in the cache, as an Arrow array."""
        return pa.array([self.key(row) for row in range(len(self))], pa.large_string())

    def key(self, row: int) -> str:
        """What one is called in the cache."""
        return f"{self.listed.key(int(self.objects[row]))}#{self.starts[row]}+{self.sizes[row]}"

    def tag(self, row: int) -> str:
        """The tag of its object."""
        return self.listed.tag(int(self.objects[row]))

    def address(self, row: int) -> str:
        """The address of its object, for people."""
        return self.listed.address(int(self.objects[row]))

    def span(self, row: int) -> tuple[str, int, int]:
        """The key of its object, and where it begins and ends in that."""
        start = int(self.starts[row])
        return self.listed.key(int(self.objects[row])), start, start + int(self.sizes[row])

    def object_bytes(self, row: int) -> int:
        """The size of its object."""
        return int(self.listed.sizes[self.objects[row]])

    def has_md5(self, row: int) -> bool:
        """True if it is a whole object whose tag is its MD5."""
        return int(self.sizes[row]) == self.object_bytes(row) and self.listed.has_md5(int(self.objects[row]))

    def wrong(self, row: int, data: Any) -> DataError | None:
        """Why a body is not the range that was asked for. A store says nothing of the checksum of a range."""
        if self.has_md5(row):
            return self.listed.wrong(int(self.objects[row]), data)
        expected = int(self.sizes[row])
        if len(data) != expected:
            return TruncatedError(self.address(row), f"{len(data)} bytes arrived; {expected} were asked for")
        return None

    def empty(self, row: int) -> DataError | None:
        """No piece is."""
        return None
