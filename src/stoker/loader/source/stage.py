"""Copying a subset of a store into the cache before it is needed: how much, how long, and when that pays."""

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from stoker.errors import UnsafeError, UsageError
from stoker.loader.cache import Cache, Shelf, disk_bytes, kept
from stoker.loader.scratch import Scratch
from stoker.loader.source.ahead import Ahead
from stoker.loader.source.blocks import Ints
from stoker.loader.source.interface import Place
from stoker.loader.source.manifest import Manifest
from stoker.loader.source.pieces import Listed
from stoker.loader.source.subset import Subset, choose

STAGE_BYTES = 256 << 20
"""What may be under way, or arrived and not written."""
Reads = Callable[[Iterator[tuple[Place, Ints]], int], Ahead]
"""Starts reading along an order, within a number of bytes."""

_CHUNK = 64
_PROBED = 256
"""Local reads that are timed for the break-even."""
_LINE_EVERY_S = 5.0


@dataclass(frozen=True)
class Staged:
    """What staging did, and when it pays. Rates and times were measured while it ran."""

    images: int
    """Images, or pieces of tables."""
    bytes: int
    copied: int
    """Those that were not there already."""
    copied_bytes: int
    seconds: float
    remote_samples_per_s: float | None
    """The store's rate; None if nothing had to be copied."""
    local_samples_per_s: float
    """Reading the staged files back, without decoding them."""
    remote_epoch_s: float | None
    """An epoch over the subset that reads from the store, at the training's rate or the store's, what is slower."""
    staged_epoch_s: float
    break_even_epochs: float | None = None
    """From so many epochs on, staging took less time than reading from the store each time. None: never, or unknown."""

    noun: str = "images"

    def lines(self) -> list[str]:
        """For people."""
        what = f"{self.images:,} {self.noun} ({_mb(self.bytes)})"
        found = [f"staged {what}; {self.copied:,} copied in {self.seconds:.1f} s"]
        if self.remote_epoch_s is not None:
            pays = "never" if self.break_even_epochs is None else f"after {self.break_even_epochs:.1f} epochs"
            found.append(
                f"an epoch takes {self.remote_epoch_s:.1f} s from the store and {self.staged_epoch_s:.1f} s staged, so "
                f"staging pays {pays}, against reading from the store every time; a cache that fills while the first "
                "epoch trains costs nothing ahead, and the first epoch the store's pace"
            )
        return found


def batches(rows: Ints) -> Iterator[tuple[Place, Ints]]:
    """Rows in pieces, for reading ahead along them."""
    for at in range(0, len(rows), _CHUNK):
        yield Place(position=at), rows[at : at + _CHUNK]


def reserve(shelf: Shelf, manifest: Manifest, rows: Ints, subset: Subset, budget_bytes: int) -> NDArray[np.bool_]:
    """Make room in the budget for a subset: it stays, whatever else has to go. Returns what is kept from now on."""
    with shelf.alone():
        noted = [one for one in shelf.note().get("staged", []) if one != subset.to_json()]
        first = np.unique(np.concatenate([rows, *(choose(manifest, Subset.parse(one)) for one in noted)]))
        needed = disk_bytes(manifest.sizes[first])
        if needed > budget_bytes:
            raise UsageError(
                f"the staged images take {_mb(needed)} and cache_bytes is {_mb(budget_bytes)}; stage a smaller subset, "
                f"raise cache_bytes, or delete {shelf.folder}"
            )
        granted = shelf.reserve(disk_bytes(manifest.sizes), budget_bytes, staged=[*noted, subset.to_json()])
    if needed > granted:
        raise UsageError(f"{_mb(needed)} are needed, and other sources leave {_mb(granted)} of cache_bytes")
    return kept(manifest, granted, first)


def stage(
    rows: Ints,
    listed: Listed,
    cache: Cache,
    reads: Reads,
    directory: Path,
    samples_per_s: float | None,
    *,
    noun: str = "images",
    samples: float = 1.0,
) -> Staged:
    """Copy what is not there, verify what is. Each row holds so many samples, on average."""
    begin = time.perf_counter()
    there, lacking = _verified(rows, cache)
    todo_bytes = int(listed.sizes[lacking].sum())
    free, needed = shutil.disk_usage(directory).free, disk_bytes(listed.sizes[lacking])
    if needed > free:
        raise UnsafeError(f"{_mb(needed)} are to be staged in {directory}, where {_mb(free)} are free")
    _tell(f"staging {len(rows):,} {noun} ({_mb(int(listed.sizes[rows].sum()))}) in {directory}: {len(there):,} there")
    copied_s = _copy(lacking, listed, reads, todo_bytes) if len(lacking) else 0.0
    if cache.off is not None:
        raise UnsafeError(f"staging stopped: {cache.off}")
    rate = samples * len(lacking) / copied_s if len(lacking) else None
    local = samples * _local_rate(rows, cache)
    epochs = [samples * len(rows) / min(r, samples_per_s or r) if r else None for r in (rate, local)]
    gained = None if epochs[0] is None or epochs[1] is None else epochs[0] - epochs[1]
    done = Staged(
        images=len(rows),
        bytes=int(listed.sizes[rows].sum()),
        copied=len(lacking),
        copied_bytes=todo_bytes,
        seconds=time.perf_counter() - begin,
        remote_samples_per_s=rate,
        local_samples_per_s=local,
        remote_epoch_s=epochs[0],
        staged_epoch_s=epochs[1] or 0.0,
        break_even_epochs=copied_s / gained if gained and gained > 0 else None,
        noun=noun,
    )
    for line in done.lines():
        _tell(line)
    return done


def _verified(rows: Ints, cache: Cache) -> tuple[list[int], Ints]:
    """Rows that are there and right, and the others."""
    scratch, here = Scratch(), np.setdiff1d(rows, cache.lacking(rows)).tolist()
    with closing(cache.files()) as files:
        there = [row for row in here if cache.read(row, scratch, files) is not None]
    return there, np.setdiff1d(rows, np.array(there, np.int64))


def _copy(rows: Ints, listed: Listed, reads: Reads, todo_bytes: int) -> float:
    """Wait for every object in turn; the requests run ahead. Returns the time it took."""
    begin = last = time.perf_counter()
    done_bytes, estimated = 0, False
    with _progress() as progress, closing(reads(batches(rows), STAGE_BYTES)) as ahead:
        bar = progress.add_task("staging", total=todo_bytes)
        for place, piece in batches(rows):
            for want in ahead.batch(place, piece).values():
                try:
                    want.wait()
                finally:
                    ahead.used(want)
            done_bytes += int(listed.sizes[piece].sum())
            progress.update(bar, completed=done_bytes)
            now = time.perf_counter()
            if done_bytes and (not estimated or now - last > _LINE_EVERY_S) and not progress.console.is_terminal:
                left_s = (todo_bytes - done_bytes) * (now - begin) / done_bytes
                _tell(
                    f"{_mb(done_bytes)} of {_mb(todo_bytes)}, {_mb(done_bytes / (now - begin))}/s, {left_s:.0f} s left"
                )
                estimated, last = True, now
    return time.perf_counter() - begin


def _progress() -> Progress:
    console = Console(file=sys.stderr)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _local_rate(rows: Ints, cache: Cache) -> float:
    scratch, begin = Scratch(), time.perf_counter()
    some = rows[:: max(1, len(rows) // _PROBED)].tolist()
    with closing(cache.files()) as files:
        for row in some:
            cache.read(row, scratch, files)
    return len(some) / max(1e-9, time.perf_counter() - begin)


def _tell(line: str) -> None:
    print(f"stoker: {line}", file=sys.stderr)


def _mb(count: float) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"  # noqa: PLR2004
