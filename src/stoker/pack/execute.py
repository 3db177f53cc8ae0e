"""Carries a plan out on this machine: within a budget of memory, in threads, resumed where it stopped."""

import errno
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil

from stoker.errors import ChangedError, ClosedError, DiskFullError, UsageError
from stoker.loader import waits
from stoker.loader.progress import Progress
from stoker.loader.source.paths import at_home
from stoker.pack import staging
from stoker.pack.kinds import Layout, layout
from stoker.pack.plan import OTHER, Output, Piece, Plan, SourceFile
from stoker.pack.sources import HERE, Here, Sources, needed

_ROOM = 1.03
"""A file system needs a little more than the bytes themselves."""


def run(
    plan: Plan, destination: Path, *, memory_bytes: int = 1 << 30, threads: int | None = None, verify: bool = False
) -> bool:
    """Carry a plan out; False if the destination already holds its result. Killed at any point, run it again."""
    destination = at_home(destination).resolve()  # what is renamed at the end would replace a link, not follow it
    if staging.is_there(plan, destination):
        remains = destination.with_name(f"{destination.name}.packing")
        shutil.rmtree(remains, ignore_errors=True)
        if verify:
            _verify(plan, destination)
        return False
    _check_place(plan, destination)
    kind = layout(plan.kind)
    sources = _sources(plan, memory_bytes)
    workers = _workers(kind.need_bytes(plan), memory_bytes, threads, sources.memory_bytes)
    place = staging.Staging(plan, destination)
    try:
        done = place.open()
        job = _Run(plan, kind, place, done, workers, memory_bytes, sources)
        job.check_room()
        with Progress(
            f"packing {len(plan.outputs)} file{'s' * (len(plan.outputs) > 1)}", job.total_bytes()
        ) as progress:
            job.go(progress)
        place.finish(done)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise _full(destination, error) from error
        raise
    except ValueError as error:  # tensorstore says it in words only
        if any(words in str(error) for words in ("No space left", "File too large", "quota exceeded")):
            raise _full(destination, error) from error
        raise
    finally:
        sources.close()
        place.close()
    if verify:
        _verify(plan, destination)
    return True


def _sources(plan: Plan, memory_bytes: int) -> Sources:
    """The sources of a plan, if none of them has changed."""
    stored = ["://" in file.path for file in plan.files]
    if not any(stored):
        here = Here()
        here.check(plan.files)
        return here
    if not all(stored):
        raise UsageError("the plan has files of this machine and of a store; make a plan of one of both")
    from stoker.pack import stores  # torch and more, which files of this machine do without

    return stores.Volumes(plan) if plan.kind == "volumes" else stores.Objects(plan, memory_bytes)


def _check_place(plan: Plan, destination: Path) -> None:
    if destination.exists() and destination.samefile(Path()):
        raise UsageError(f"{destination} is the current folder, which cannot be replaced; name a folder inside it")
    if any(above.is_file() for above in destination.parents):
        return  # no folder can be made there, which is said when it is tried
    for folder in plan.folders:
        if Path(folder) in destination.parents:
            raise UsageError(
                f"{destination} is inside {folder}, and would be a part of it the next time; name a folder outside"
            )


def _full(destination: Path, error: Exception) -> DiskFullError:
    return DiskFullError(
        f"no room for {destination} ({getattr(error, 'strerror', None) or 'the disk is full'}); what is done stays in "
        f"{destination.name}.packing: free some room, and run the same command again to go on"
    )


def _workers(need: int, memory_bytes: int, threads: int | None, held_bytes: int) -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    budget = memory_bytes - held_bytes - psutil.Process().memory_info().rss
    fit = budget // max(1, need)
    if fit < 1:
        least = (need + held_bytes + psutil.Process().memory_info().rss) * 1.05 / 1e6
        raise UsageError(f"--memory is {memory_bytes / 1e6:.0f} MB; this needs at least {least:.0f} MB")
    return int(max(1, min(cores if threads is None else threads, fit)))


def _verify(plan: Plan, destination: Path) -> None:
    with Progress("verifying", plan.output_bytes) as progress:
        staging.verify(destination, progress.advance)


class _Run:
    """One execution."""

    def __init__(
        self,
        plan: Plan,
        kind: Layout,
        place: staging.Staging,
        done: dict[int, staging.Done],
        workers: int,
        memory_bytes: int,
        sources: Sources = HERE,
    ) -> None:
        self.plan, self.kind, self.place, self.done, self.workers = plan, kind, place, done, workers
        self.sources = sources
        self.todo = [number for number in range(len(plan.outputs)) if number not in done]
        spilled = any(place.spill.iterdir())
        held_bytes = sources.memory_bytes + workers * kind.need_bytes(plan)
        budget = memory_bytes - psutil.Process().memory_info().rss - held_bytes
        copies = 1.2 if plan.kind == "records" else 3.0  # tables are copied while they are dealt out
        self.in_memory = not spilled and copies * plan.dealt_bytes <= budget

    def total_bytes(self) -> int:
        """What has to be written."""
        pieces = len(self.plan.pieces) if self.todo and not self.in_memory else 0
        spills = pieces and self.plan.dealt_bytes * (pieces - self._spilled()) // len(self.plan.pieces)
        return spills + sum(self.plan.outputs[number].bytes for number in self.todo)

    def _spilled(self) -> int:
        return sum(self._spill_folder(number).exists() for number in range(len(self.plan.pieces)))

    def _spill_folder(self, number: int) -> Path:
        return self.place.spill / f"{number:05}"

    def check_room(self) -> None:
        """Refuse before anything is written if it cannot fit."""
        free = shutil.disk_usage(self.place.folder).free
        brought = self.sources.disk_bytes(self._needed(), self.workers)
        room = int((self.total_bytes() + brought) * _ROOM)
        if room > free:
            raise DiskFullError(
                f"packing into {self.place.destination} takes about {room / 1e6:,.0f} MB, and "
                f"{free / 1e6:,.0f} MB are free there; free some, or choose another destination"
            )

    def _readers(self) -> list[int]:
        """The pieces of work that read sources: pieces that are to be dealt out, or else outputs."""
        if not self.plan.pieces or not self.todo:
            return self.todo
        every = range(len(self.plan.pieces))
        return [number for number in every if self.in_memory or not self._spill_folder(number).exists()]

    def _needed(self) -> list[list[int]]:
        """The files that each of them reads."""
        runs: Sequence[Piece | Output] = self.plan.pieces or self.plan.outputs
        return needed(self.plan, [runs[number] for number in self._readers()])

    def go(self, progress: Progress) -> None:
        """Both passes."""
        self.sources.expect(self._needed(), self.place.source)
        spills: list[Any] = []
        if self.plan.pieces and self.todo:
            spills = self._deal(progress)
        self._each(self.todo, lambda number: self._output(number, spills, progress))

    def _deal(self, progress: Progress) -> list[Any]:
        numbers = range(len(self.plan.pieces))
        if self.in_memory:
            found: dict[int, Any] = {}
            self._each(numbers, lambda number: found.update({number: self._dealt(number, None)}))
            return [found[number] for number in numbers]
        each = self.plan.dealt_bytes // len(numbers)
        self._each(self._readers(), lambda number: self._spill(number, each, progress))
        return [self.kind.saved(self.plan, self._spill_folder(number)) for number in numbers]

    def _dealt(self, number: int, folder: Path | None) -> Any:
        return self.kind.spill(self.plan, number, folder, self.sources)

    def _spill(self, number: int, each: int, progress: Progress) -> None:
        folder = self._spill_folder(number)
        partial = folder.with_name(f"{folder.name}.partial")
        partial.mkdir()
        self._dealt(number, partial)
        partial.rename(folder)
        progress.advance(each)
        _give_back()

    def _output(self, number: int, spills: list[Any], progress: Progress) -> None:
        place = self.place.partial / self.plan.outputs[number].name
        rows, sha256 = self.kind.write(self.plan, number, place, spills, self.sources)
        self.sources.check(self._read_for(number))
        self.done[number] = self.place.finish_output(number, rows, place, sha256)
        progress.advance(self.plan.outputs[number].bytes)
        _give_back()

    def _read_for(self, number: int) -> Sequence[SourceFile]:
        """The files that an output was made of; of volumes and images, only its own."""
        if self.plan.kind == "volumes":
            return self.plan.files[number : number + 1]
        output = self.plan.outputs[number]
        return self.plan.files[output.start : output.stop] if self.plan.kind == "images" else self.plan.files

    def _each(self, numbers: Iterable[int], work: Callable[[int], None]) -> None:
        """Do something for each number, some at a time; the first failure ends it."""
        with ThreadPoolExecutor(self.workers, "stoker-pack") as pool:
            running: list[Future[None]] = []
            is_over = False
            try:
                running.extend(pool.submit(work, number) for number in numbers)
                is_over = waits.for_all(running)
            finally:
                if not is_over:
                    self.sources.stop()  # others may wait for what will never come
                pool.shutdown(wait=True, cancel_futures=True)
        errors = [error for one in running if not one.cancelled() and (error := one.exception())]
        for error in sorted(errors, key=lambda error: isinstance(error, ClosedError)):
            if isinstance(error, ChangedError) and "://" in error.path:  # the loader says how to open it anew
                raise ChangedError(error.path, OTHER) from error
            raise error


def _give_back() -> None:
    """Return to the system what Arrow keeps for later."""
    import pyarrow as pa

    pa.default_memory_pool().release_unused()
