"""What of a file is in memory, and how to get it out, for measuring cold reads."""

import ctypes
import mmap
import os
from pathlib import Path

import numpy as np


def cached_share(path: str) -> float | None:
    """The share of a file's pages that are in the page cache; None where the system cannot tell."""
    mincore = getattr(ctypes.CDLL(None), "mincore", None)
    size = Path(path).stat().st_size
    if mincore is None or size == 0:
        return None
    pages = -(-size // mmap.PAGESIZE)
    found = np.zeros(pages, np.uint8)
    with Path(path).open("rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as mapped:
        view = np.frombuffer(mapped, np.uint8)
        failed = mincore(
            ctypes.c_void_p(view.ctypes.data), ctypes.c_size_t(size), found.ctypes.data_as(ctypes.c_void_p)
        )
        del view
    return None if failed else float((found & 1).mean())


def evict(path: str) -> None:
    """Ask the system to take a file out of the page cache. Pages that somebody maps stay."""
    if not hasattr(os, "posix_fadvise"):
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)
