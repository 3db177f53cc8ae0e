"""Voxels that are not background: a sample of each label volume, found once and kept."""

import math
import os
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np

from stoker.loader.source import corners, zarrs
from stoker.loader.source.blocks import Ints
from stoker.loader.source.volume import Volume

MOST = 4096
"""Voxels kept of each volume, each as likely as any other."""

_BOX_BYTES = 1 << 22
"""Read at once, unless a chunk is larger."""
_LOOKED_AT = 1 << 16
"""Voxels searched at once: a position takes eight bytes and sampling some copies, which stay in a core's cache so."""


class Index:
    """Foreground voxels by volume; in memory, and in a folder for the next run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, Ints] = {}
        self._locks: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()

    def of(self, volume: Volume) -> Ints:
        """Positions of foreground voxels, a row each; none if the volume is all background."""
        with self._lock:
            lock = self._locks.setdefault(volume.path, threading.Lock())
        with lock:
            if volume.path not in self._known:
                self._known[volume.path] = self._load(volume)
            return self._known[volume.path]

    def _load(self, volume: Volume) -> Ints:
        path = self._folder / f"foreground-{volume.identity()}.npy"
        with suppress(OSError, ValueError, EOFError):
            found: Ints = np.load(path, allow_pickle=False)
            if found.ndim == 2 and found.dtype == np.int64:  # noqa: PLR2004  rows of positions
                return found
        found = search(volume)
        with suppress(OSError):  # without a cache it is searched again in the next run
            self._folder.mkdir(parents=True, exist_ok=True)
            partial = path.with_name(f"{path.stem}.partial-{os.getpid()}-{threading.get_ident()}.npy")
            np.save(partial, found)
            partial.replace(path)
        return found


def search(volume: Volume) -> Ints:
    """A sample of the voxels that are not 0, read box by box; the same one however the volume lies on disk."""
    found = np.empty(0, np.int64)
    for box in zarrs.boxes(volume.shape, _at_once(volume)):
        block, low = volume.read(box), [cut.start for cut in box]
        for at in range(0, block.size, _LOOKED_AT):
            here = np.flatnonzero(block.reshape(-1)[at : at + _LOOKED_AT]) + at
            inside = np.unravel_index(here, block.shape)
            places = np.ravel_multi_index([a + b for a, b in zip(inside, low, strict=True)], volume.shape)
            found = corners.sample_voxels(np.concatenate([found, places]), MOST)
    return np.stack(np.unravel_index(np.sort(found), volume.shape), axis=-1).astype(np.int64)


def _at_once(volume: Volume) -> list[int]:
    """The sides of a box of whole chunks, as many as may be read at once."""
    sides = [min(part, side) for part, side in zip(volume.chunk, volume.shape, strict=True)]
    for axis in reversed(range(len(sides))):
        more = _BOX_BYTES // (volume.dtype.itemsize * math.prod(sides))
        sides[axis] = min(volume.shape[axis], sides[axis] * max(1, more))
    return sides
