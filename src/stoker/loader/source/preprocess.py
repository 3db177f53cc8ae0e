"""A function applied to every volume once, its results kept on disk: atomic, keyed, and resumed where it stopped."""

import hashlib
import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from stoker.errors import MapError, UsageError
from stoker.loader import waits
from stoker.loader.progress import Progress
from stoker.loader.source import zarrs
from stoker.loader.source.alone import alone, no_room
from stoker.loader.source.volume import ZARR, Volume

Function = Callable[[NDArray[Any]], NDArray[Any]]


def run(volumes: Sequence[Volume], fn: Function, *, key: str, folder: Path, patch: Sequence[int]) -> list[str]:
    """The paths of the volumes' results, made now where they are not there yet."""
    if not isinstance(key, str) or not key:
        raise UsageError(f"key is {key!r}; expected a text that names what the function does")
    folder.mkdir(parents=True, exist_ok=True)
    places = [folder / f"{_name(volume, key, patch)}{ZARR}" for volume in volumes]
    todo = [at for at, place in enumerate(places) if not place.exists()]
    if todo:
        _sweep(folder)
        threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        with (
            Progress(f"preparing {len(todo)} volumes ({key})", len(todo), in_bytes=False) as progress,
            ThreadPoolExecutor(threads, "stoker-prepare") as pool,
        ):
            running = [pool.submit(_make, volumes[at], places[at], fn, patch, progress) for at in todo]
            try:
                waits.for_all(running)
            finally:
                pool.shutdown(wait=True, cancel_futures=True)
            for one in running:
                if not one.cancelled():
                    one.result()
    return [str(place) for place in places]


def _name(volume: Volume, key: str, patch: Sequence[int]) -> str:
    said = repr((1, Path(volume.path).name, volume.identity(), key, tuple(patch)))
    return f"{Path(volume.path).name.partition('.')[0]}-{hashlib.sha256(said.encode()).hexdigest()[:20]}"


def _make(volume: Volume, place: Path, fn: Function, patch: Sequence[int], progress: Progress) -> None:
    # Ranks and runs on one machine do each volume once: the others wait here, and then find it done.
    with alone(place.with_suffix(".lock"), forget=True):
        if not place.exists():
            _write(_apply(volume, fn), place, patch)
    progress.advance(1)


def _apply(volume: Volume, fn: Function) -> NDArray[Any]:
    before = volume.read(volume.whole())
    try:
        after = np.asarray(fn(before))
    except Exception as error:
        raise MapError(f"the function failed on {volume.path}: {type(error).__name__}: {error}") from error
    if after.shape != volume.shape:
        raise MapError(f"the function made {after.shape} of {volume.path}, which has {volume.shape}; expected the same")
    return after


def _write(array: NDArray[Any], place: Path, patch: Sequence[int]) -> None:
    partial = place.with_name(f"{place.name}.partial-{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        with no_room(place.parent, "a prepared volume"):
            store = zarrs.create(
                partial, array.shape, array.dtype, zarrs.chunks_for(patch, array.shape), compress=False
            )
            for box in zarrs.boxes(array.shape, store.chunk_layout.write_chunk.shape):
                store[box].write(np.ascontiguousarray(array[box])).result()
            partial.rename(place)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _sweep(folder: Path) -> None:
    """Remove what a killed run left behind."""
    for left in folder.glob(f"*{ZARR}.partial-*"):
        pid = left.name.rpartition("-")[2]
        if pid.isdecimal() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(left, ignore_errors=True)
