"""Gathers of byte runs from anywhere in memory, without the GIL: a range of addresses as one array.

Addresses must lie in memory that the caller keeps alive and that is known to hold the runs. `runs.c` does the copying
where it could be compiled; torch and Arrow do it elsewhere, one field after the other and with a copy more.
"""

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stoker.loader.source.blocks import Bytes, Ints

_FEW = 8
"""So few runs are copied one by one."""


def compiled(name: str, arguments: int) -> Any:
    """A function of `runs.c`, all of whose arguments are addresses or counts; None where it was not compiled."""
    try:
        found = getattr(ctypes.CDLL(str(Path(__file__).with_name("libruns.so"))), name)
    except (OSError, AttributeError):
        return None
    found.argtypes, found.restype = [ctypes.c_int64] * arguments, None
    return found


_copy_runs, _copy_parts = compiled("stoker_runs", 4), compiled("stoker_parts", 6)


class _Span:
    """A range of addresses as an array; nothing of it is touched before it is indexed."""

    def __init__(self, start: int, size: int) -> None:
        self.__array_interface__ = {"data": (start, False), "shape": (size,), "typestr": "|u1", "version": 3}


class Memory:
    """The addresses from `low` to `high`. There may be holes, as long as no run lies in one."""

    def __init__(self, low: int, high: int) -> None:
        self.low = low
        self.high = high
        self._bytes: Bytes = np.asarray(_Span(low, high - low))
        self._tensor = torch.from_numpy(self._bytes)
        self._rows: dict[int, torch.Tensor] = {}

    def rows(self, size: int) -> torch.Tensor:
        """Row i is the `size` bytes from the i-th address on."""
        if size not in self._rows:
            self._rows[size] = torch.as_strided(self._tensor, (self._tensor.numel() - size + 1, size), (1, 1))
        return self._rows[size]

    def fixed(self, begins: Ints, size: int, out: torch.Tensor) -> None:
        """Copy `size` bytes from each address into a row of `out`."""
        torch.index_select(self.rows(size), 0, torch.from_numpy(begins - self.low), out=out)

    def parts(self, begins: Ints, offsets: Ints, sizes: Ints, outs: Sequence[torch.Tensor]) -> None:
        """Copy parts of the row at each address, the i-th one into the rows of the i-th of `outs`."""
        if _copy_parts is None:
            for offset, size, out in zip(offsets.tolist(), sizes.tolist(), outs, strict=True):
                self.fixed(begins + offset, size, out)
            return
        addresses = np.array([out.data_ptr() for out in outs], np.int64)
        tables = [array.ctypes.data for array in (addresses, offsets, sizes)]
        _copy_parts(*tables, len(outs), begins.ctypes.data, len(begins))

    def bounds(self, begins: Ints, width: int) -> tuple[Ints, Ints]:
        """The two neighbouring offsets of `width` bytes at each address: where a list begins, and where it ends."""
        raw = torch.empty((len(begins), 2 * width), dtype=torch.uint8)
        self.fixed(begins, 2 * width, raw)
        pairs = raw.numpy().view(np.dtype(f"i{width}")).astype(np.int64, copy=False)
        return pairs[:, 0], pairs[:, 1]

    def ragged(self, begins: Ints, sizes: Ints, out: torch.Tensor) -> None:
        """Copy the runs of `sizes` bytes that begin at `begins` into `out`, one after the other."""
        if _copy_runs is not None:
            begins, sizes = np.ascontiguousarray(begins), np.ascontiguousarray(sizes)
            _copy_runs(out.data_ptr(), begins.ctypes.data, sizes.ctypes.data, len(begins))
            return
        target = out.numpy().reshape(-1)
        starts = begins - self.low
        if len(starts) <= _FEW:
            at = 0
            for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
                np.copyto(target[at : at + size], self._bytes[start : start + size])
                at += size
        elif len(target):
            # A second copy, into memory that is reused: Arrow's own, given back at once, stays in the processor's
            # cache, and costs less than the fresh pages of a batch that the consumer holds.
            np.copyto(target, self._taken(starts, sizes, len(target)))

    def _taken(self, starts: Ints, sizes: Ints, total: int) -> Bytes:
        import pyarrow as pa

        # Arrow's `take` on binary values is a memcpy per value, which is what is wanted here. Value 2i of this array
        # is run i; values in between are not taken, so that offsets need not rise. The last offset makes the mean
        # length, which Arrow reserves memory by, come out as that of the runs; the buffer is said to reach that far.
        offsets = np.empty(2 * len(starts) + 1, np.int64)
        offsets[0:-1:2] = starts
        offsets[1::2] = starts + sizes
        offsets[-1] = offsets[0] + 2 * total
        data = pa.foreign_buffer(self.low, self.high - self.low + 2 * total)
        values = pa.Array.from_buffers(pa.large_binary(), 2 * len(starts), [None, pa.py_buffer(offsets), data])
        return np.frombuffer(values.take(_even(len(starts))).buffers()[2], np.uint8)[:total]


@lru_cache(maxsize=8)
def _even(count: int) -> Any:
    import pyarrow as pa

    return pa.array(np.arange(0, 2 * count, 2))


def texts(data: torch.Tensor, offsets: torch.Tensor, *, text: bool) -> list[Any]:
    """Runs of bytes as strings or bytes."""
    import pyarrow as pa

    kind = pa.large_string() if text else pa.large_binary()
    buffers = [None, pa.py_buffer(offsets.numpy()), pa.py_buffer(data.numpy().reshape(-1))]
    found: list[Any] = pa.Array.from_buffers(kind, len(offsets) - 1, buffers).to_pylist()
    return found
