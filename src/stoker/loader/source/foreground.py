"""Voxels that are not background: a sample of each label volume, found once and kept."""

import os
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np

from stoker.loader.source import corners
from stoker.loader.source.blocks import Ints
from stoker.loader.source.volume import Volume

MOST = 4096
"""Voxels kept of each volume, each as likely as any other."""

_SLAB_BYTES = 1 << 26


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
        with suppress(OSError, ValueError):
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
    """A sample of the voxels that are not 0, read slab by slab."""
    plane = int(np.prod(volume.shape[1:], dtype=np.int64))
    step = max(1, _SLAB_BYTES // max(1, plane * volume.dtype.itemsize), volume.chunk[0])
    found = np.empty(0, np.int64)
    for start in range(0, volume.shape[0], step):
        box = (slice(start, min(volume.shape[0], start + step)), *volume.whole()[1:])
        here = np.flatnonzero(volume.read(box)) + start * plane
        found = corners.sample_voxels(np.concatenate([found, here]), MOST)
    return np.stack(np.unravel_index(found, volume.shape), axis=-1).astype(np.int64)
