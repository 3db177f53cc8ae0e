"""The memory that batches are made in: reused, because fresh pages cost four times what the copy into them does.

A buffer goes back to its pool when the last tensor that shares its memory is gone, views, slices and
`Tensor.numpy()` included; until then nobody writes to it. A consumer that keeps every batch gets new memory for each.
"""

import weakref
from collections import defaultdict, deque
from typing import Any

import numpy as np
import torch

_Key = tuple[int, tuple[int, ...], np.dtype[Any]]


class _Buffer:
    """Memory for up to `capacity` rows of one field."""

    __slots__ = ("array", "key", "nbytes", "raw")

    def __init__(self, key: _Key, *, pinned: bool) -> None:
        capacity, shape, dtype = key
        self.key = key
        row_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        self.nbytes = capacity * row_bytes
        memory = torch.empty(self.nbytes, dtype=torch.uint8, pin_memory=pinned)
        self.raw = memory.view(capacity, row_bytes)
        self.array: np.ndarray[Any, Any] = memory.numpy().view(dtype).reshape(capacity, *shape)


class _Loan(weakref.ref["np.ndarray[Any, Any]"]):
    """Watches the array that every tensor of a lent buffer keeps alive."""

    __slots__ = ("buffer",)

    buffer: _Buffer


def _capacity(rows: int) -> int:
    """Rows rounded up by at most an eighth, so that batches of nearly the same size share buffers."""
    step = 1 << max(0, rows.bit_length() - 4)
    return -(-rows // step) * step


class Pool:
    """Lends buffers. Has no lock: the end of a loan can run inside any thread, at any allocation."""

    def __init__(self, *, keep: int = 16, pinned: bool = False) -> None:
        self._free: dict[_Key, deque[_Buffer]] = defaultdict(lambda: deque(maxlen=keep))
        self._loans: dict[int, _Loan] = {}
        self._pinned = pinned
        self._closed = False
        self.made = 0
        """Buffers made since the start; fewer than a few per field, or the consumer keeps its batches."""

    def lease(self, rows: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """A tensor of `rows` rows of `shape`, and the same memory as rows of bytes."""
        key = (_capacity(rows), shape, dtype)
        try:
            buffer = self._free[key].pop()  # the one used last: it is still in the processor's cache
        except IndexError:
            buffer = _Buffer(key, pinned=self._pinned)
            self.made += 1
        view = buffer.array[:rows]
        loan = _Loan(view, self._back)
        loan.buffer = buffer
        self._loans[id(loan)] = loan
        return torch.from_numpy(view), buffer.raw[:rows]

    def _back(self, loan: _Loan) -> None:
        del self._loans[id(loan)]
        if not self._closed:
            self._free[loan.buffer.key].append(loan.buffer)

    def nbytes(self) -> int:
        """Memory of the pool: what it lent and what it keeps."""
        lent = sum(loan.buffer.nbytes for loan in list(self._loans.values()))
        return lent + self.kept_bytes()

    def kept_bytes(self) -> int:
        """Memory that waits to be lent again."""
        return sum(len(free) * next(iter(free)).nbytes for free in list(self._free.values()) if free)

    def trim(self) -> None:
        """Let go of what is not lent."""
        self._free.clear()

    def close(self) -> None:
        """Keep nothing more; what is lent stays valid."""
        self._closed = True
        self.trim()
