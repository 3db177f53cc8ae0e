"""Hints to the kernel about mapped memory; no-ops where there is no `madvise`."""

import ctypes
import mmap

import numpy as np

from stoker.loader.source.blocks import Ints

PAGE_BYTES = mmap.PAGESIZE
_AROUND_BYTES = 1 << 16
"""Linux maps so much around a page that is touched."""
_MOST_APART = 8192
"""A process may have 65,530 mappings; two windows of so many ranges and the gaps between take half of them."""
_MADVISE = getattr(ctypes.CDLL(None), "madvise", None) if hasattr(mmap, "MADV_WILLNEED") else None


def will_need(starts: Ints, sizes: Ints) -> None:
    """Read these ranges of addresses into the page cache, without waiting."""
    _advise("MADV_WILLNEED", starts, sizes)


def forget(starts: Ints, sizes: Ints, within: tuple[Ints, Ints]) -> None:
    """Take these ranges out of the process's resident memory; the page cache keeps them.

    A page that is touched brings neighbours with it: those go too, as far as they belong to the mappings `within`.
    """
    low, high = _merge(*within)
    begins, ends = _merge(starts - _AROUND_BYTES, sizes + 2 * _AROUND_BYTES)
    # Each part of a range that lies in a mapping; a range may touch two of them.
    first = np.searchsorted(high, begins, side="right")
    for step in (0, 1):
        at = np.minimum(first + step, len(low) - 1)
        cut_begins, cut_ends = np.maximum(begins, low[at]), np.minimum(ends, high[at])
        inside = (cut_begins < cut_ends) & (first + step < len(low))
        if inside.any():
            _advise("MADV_DONTNEED", cut_begins[inside], (cut_ends - cut_begins)[inside])


def set_apart(starts: Ints, sizes: Ints) -> None:
    """Make mappings of their own of these ranges, so that touching one maps nothing beyond it.

    Since 6.18 Linux maps all of a large folio that is touched, up to 2 MiB, but never past the end of a mapping. The
    kernel joins neighbouring mappings that are alike; a mark that means nothing else (no core dump) keeps them apart.
    """
    if len(starts) <= _MOST_APART:
        _advise("MADV_DONTDUMP", starts, sizes)


def join_again(starts: Ints, sizes: Ints) -> None:
    """Undo `set_apart`."""
    if len(starts) <= _MOST_APART:
        _advise("MADV_DODUMP", starts, sizes)


def at_random(starts: Ints, sizes: Ints) -> None:
    """Reading one page says nothing about its neighbours: no read-around."""
    _advise("MADV_RANDOM", starts, sizes)


def _advise(name: str, starts: Ints, sizes: Ints) -> None:
    if _MADVISE is None:
        return
    advice = int(getattr(mmap, name))
    begins, ends = _merge(starts, sizes)
    # Through ctypes, because mmap.madvise keeps the GIL while the kernel starts to read.
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        _MADVISE(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), advice)


def _merge(starts: Ints, sizes: Ints) -> tuple[Ints, Ints]:
    """Whole pages, sorted, and ranges that touch each other joined."""
    order = np.argsort(starts)
    begins = starts[order] // PAGE_BYTES * PAGE_BYTES
    ends = -(-(starts + sizes)[order] // PAGE_BYTES) * PAGE_BYTES
    reach = np.maximum.accumulate(ends)
    new = np.concatenate([[True], begins[1:] > reach[:-1]])
    last = np.concatenate([np.flatnonzero(new)[1:] - 1, [len(begins) - 1]])
    return begins[new], reach[last]
