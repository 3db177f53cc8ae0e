"""The memory that batches are made in: reused, because fresh pages cost four times what the copy into them does.

A buffer goes back to its pool when the last tensor that shares its memory is gone, views, slices and
`Tensor.numpy()` included; until then nobody writes to it. A consumer that keeps every batch gets new memory for each.
"""

import math
import weakref
from collections import defaultdict, deque
from typing import Any, Literal

import numpy as np
import torch

from stoker.errors import UsageError
from stoker.loader.source.interface import Batch, Padded, Ragged

RaggedAs = Literal["values", "nested", "padded"]
_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
"""Of types that torch has no `index_copy_` for, those of the same size."""
_Key = tuple[int, tuple[int, ...], np.dtype[Any]]


class _Buffer:
    """Memory for up to `capacity` rows of one field."""

    __slots__ = ("array", "key", "nbytes", "raw")

    def __init__(self, key: _Key, *, pinned: bool) -> None:
        capacity, shape, dtype = key
        self.key = key
        self.nbytes = _nbytes(key)
        memory = torch.empty(self.nbytes, dtype=torch.uint8, pin_memory=pinned)
        self.raw = memory.view(capacity, math.prod(shape) * dtype.itemsize)
        self.array: np.ndarray[Any, Any] = memory.numpy().view(dtype).reshape(capacity, *shape)


def _nbytes(key: _Key) -> int:
    capacity, shape, dtype = key
    return capacity * math.prod(shape) * dtype.itemsize


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

    def __init__(self, keep_bytes: int, *, pinned: bool = False) -> None:
        self._free: dict[_Key, deque[_Buffer]] = defaultdict(deque)
        self._keep_bytes = keep_bytes
        self._loans: dict[int, _Loan] = {}
        self._pinned = pinned
        self._closed = False
        # A number that several threads may add to without a lock: an array is changed in place, in one call.
        self._kept = np.zeros((), np.int64)
        self.made = 0
        """Buffers made since the start; fewer than a few per field, or the consumer keeps its batches."""

    def lease(self, rows: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """A tensor of `rows` rows of `shape`, and the same memory as rows of bytes."""
        key = (_capacity(rows), shape, dtype)
        try:
            buffer = self._free[key].pop()  # the one used last: it is still in the processor's cache
            self._kept -= buffer.nbytes
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
        if not self._closed and self.kept_bytes() + loan.buffer.nbytes <= self._keep_bytes:
            self._kept += loan.buffer.nbytes
            self._free[loan.buffer.key].append(loan.buffer)

    def nbytes(self) -> int:
        """Memory of the pool: what it lent and what it keeps."""
        lent = sum(loan.buffer.nbytes for loan in list(self._loans.values()))
        return lent + self.kept_bytes()

    def kept_bytes(self) -> int:
        """Memory that waits to be lent again."""
        return int(self._kept)

    def trim(self) -> None:
        """Let go of what is not lent."""
        for free in list(self._free.values()):
            while free:
                try:
                    self._kept -= free.pop().nbytes
                except IndexError:
                    break  # lent just now

    def close(self) -> None:
        """Keep nothing more; what is lent stays valid."""
        self._closed = True
        self.trim()


class Shaper:
    """Gives ragged fields the form that the user asked for."""

    def __init__(self, form: RaggedAs, pool: Pool, most_bytes: int) -> None:
        self._form = form
        self._pool = pool
        self._most_bytes = most_bytes
        self._elements = 0
        self._places = 0

    def shape(self, batch: Batch) -> Batch:
        """The batch, with ragged fields as values and offsets, nested or padded."""
        if self._form == "values":
            return batch
        make = self._padded if self._form == "padded" else _nested
        return {name: make(value) if isinstance(value, Ragged) else value for name, value in batch.items()}

    def _padded(self, ragged: Ragged) -> Padded:
        offsets = ragged.offsets.numpy()
        lengths = np.diff(offsets)
        rows, width = len(lengths), int(lengths.max(initial=0))
        values = ragged.values
        needed = rows * width * math.prod(values.shape[1:]) * values.itemsize
        if needed > self._most_bytes:
            raise UsageError(
                f"a batch of {rows} rows, padded to the longest of them, which has {width} elements, takes "
                f"{needed / 1e6:,.1f} MB, and memory is {self._most_bytes / 1e6:,.1f} MB; make batches of fewer rows, "
                "raise memory=, or take ragged='values'"
            )
        tensor, _ = self._pool.lease(rows * width, tuple(values.shape[1:]), values.numpy().dtype)
        tensor.zero_()
        places = np.arange(len(values)) + np.repeat(np.arange(rows) * width - offsets[:-1], lengths)
        same_bits = _SIGNED.get(values.dtype, values.dtype)
        tensor.view(same_bits).index_copy_(0, torch.from_numpy(places), values.view(same_bits))
        self._elements += len(values)
        self._places += rows * width
        return Padded(tensor.view(rows, width, *values.shape[1:]), torch.from_numpy(lengths))

    def padding_share(self) -> float | None:
        """The share of padded places that hold no element; None if nothing was padded."""
        return 1 - self._elements / self._places if self._places else None


def _nested(ragged: Ragged) -> torch.Tensor:
    nested: torch.Tensor = torch.nested.nested_tensor_from_jagged(ragged.values, ragged.offsets)
    return nested
