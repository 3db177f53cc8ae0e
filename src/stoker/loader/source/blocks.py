"""How a source's rows fall into blocks: runs of rows that are cheap to read at once."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]


class Blocks(Protocol):
    """A table of blocks. Block 0 holds rows 0 to `sizes(0) - 1`, block 1 the rows after them, and so on."""

    count: int
    rows: int

    def first(self, blocks: Ints) -> Ints:
        """The first row of each block."""

    def sizes(self, blocks: Ints) -> Ints:
        """The number of rows of each block."""

    def of(self, rows: Ints) -> Ints:
        """The block of each row."""

    def pairs(self) -> float:
        """The chance that two rows, drawn from all, share a block."""


class EvenBlocks:
    """Blocks of one size, the last one maybe shorter: a table that needs no memory, for a billion rows."""

    def __init__(self, rows: int, size: int) -> None:
        self.rows = rows
        self.size = size
        self.count = -(-rows // size)
        self.missing = self.count * size - rows
        """Rows that the last block lacks."""

    def first(self, blocks: Ints) -> Ints:
        """The first row of each block."""
        return blocks * self.size

    def sizes(self, blocks: Ints) -> Ints:
        """The number of rows of each block."""
        sizes = np.full(len(blocks), self.size, np.int64)
        sizes[blocks == self.count - 1] -= self.missing
        return sizes

    def of(self, rows: Ints) -> Ints:
        """The block of each row."""
        return rows // self.size

    def pairs(self) -> float:
        """The chance that two rows, drawn from all, share a block."""
        last = self.size - self.missing
        pairs = (self.count - 1) * self.size * (self.size - 1) + last * (last - 1)
        return pairs / max(1, self.rows * (self.rows - 1))


class SizedBlocks:
    """Blocks of any sizes, such as the row groups of Parquet files."""

    def __init__(self, sizes: Sequence[int] | Ints) -> None:
        self._sizes = np.asarray(sizes, np.int64)
        self._first = np.concatenate([[0], np.cumsum(self._sizes)])
        self.count = len(self._sizes)
        self.rows = int(self._first[-1])

    def first(self, blocks: Ints) -> Ints:
        """The first row of each block."""
        return self._first[blocks]

    def sizes(self, blocks: Ints) -> Ints:
        """The number of rows of each block."""
        return self._sizes[blocks]

    def of(self, rows: Ints) -> Ints:
        """The block of each row."""
        return np.searchsorted(self._first, rows, side="right") - 1

    def pairs(self) -> float:
        """The chance that two rows, drawn from all, share a block."""
        sizes = self._sizes.astype(np.float64)
        return float((sizes * (sizes - 1)).sum()) / max(1, self.rows * (self.rows - 1))
