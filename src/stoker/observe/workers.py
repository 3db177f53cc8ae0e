"""The hooks where batches are made: in stock workers, or on the main thread where there are none.

Reading is told from transforming without patching any file object: what a thread waits for beyond its CPU time and
its time in the run queue is files and sockets, and the kernel keeps these accounts per thread.
"""

import functools
import os
import resource
import time
from _thread import get_ident
from array import array
from types import ModuleType
from typing import Any

from stoker.observe import probe_making
from stoker.observe.patches import Patches
from stoker.observe.private import private_bytes
from stoker.observe.probe_ahead import parts
from stoker.observe.probe_counts import COUNTS, files_read, fingerprint, threads
from stoker.observe.recorder import Recorder, about_process, clock

ROW = 24
"""Numbers in a row of a worker's file; the first says what the row is."""
ZEROS = array("q", bytes(8 * ROW))
LIKE = 5
"""Numbers of a row that say something, where a batch is like the one before."""
MADE, SENT, ORDERED, ALIKE = 0, 1, 2, 3
"""A batch with its accounts, the sending of one, the sampler's part, and a short batch that is like the one before."""
ACCOUNT_NS = 4_000_000
"""Reading the kernel's accounts costs some 40 us, so it is done once in this much time of making batches."""
SOURCES_AFTER = 2
"""Batches with accounts after which a worker tells what it reads: the first is its own start."""
WEIGH_NS = 700_000_000
"""Between two looks at a worker's memory; longer where looking takes long."""


def install(torch: ModuleType, recorder: Recorder, patches: Patches) -> None:
    """Instrument the fetchers, which workers and the main thread share, and the workers' loop."""
    fetch = torch.utils.data._utils.fetch  # noqa: SLF001
    bench = Bench(recorder)
    patches.set(fetch._BaseDatasetFetcher, "__init__", bench.init(fetch._BaseDatasetFetcher.__init__))  # noqa: SLF001
    for kind in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):  # noqa: SLF001
        patches.set_awake(kind, "fetch", bench.fetch(kind.fetch), recorder.doze.changed)
    worker = torch.utils.data._utils.worker  # noqa: SLF001
    patches.set(worker, "_worker_loop", _watched_loop(worker._worker_loop, recorder, bench))  # noqa: SLF001


class Accounts:
    """What the kernel knows of this thread: CPU seconds, waiting for a core, faults, bytes read."""

    def __init__(self) -> None:
        self._schedule = _open("/proc/thread-self/schedstat")
        self._io = _open("/proc/thread-self/io")

    def read(self) -> tuple[int, ...]:
        """User ns, system ns, on a core ns, queued ns, minor faults, major faults, bytes read, bytes from disk."""
        usage = resource.getrusage(resource.RUSAGE_THREAD)
        ran = time.thread_time_ns()  # schedstat's own figure is only as fresh as the last tick
        read, disk = self._read_bytes()
        user, system = int(usage.ru_utime * 1e9), int(usage.ru_stime * 1e9)
        return user, system, ran, self._queued(), usage.ru_minflt, usage.ru_majflt, read, disk

    def _queued(self) -> int:
        return int(os.pread(self._schedule, 96, 0).split()[1]) if self._schedule is not None else 0

    def _read_bytes(self) -> tuple[int, int]:
        if self._io is None:
            return 0, 0
        fields = os.pread(self._io, 512, 0).split()
        return int(fields[1]), int(fields[9])


def _open(path: str) -> int | None:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


class Bench:
    """Where batches are made in this process."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.collated_ns = 0
        self._accounts: Accounts | None = None
        self._thread = 0
        self._since_ns = ACCOUNT_NS
        self._weigh_ns = 0
        self._accounted = 0
        self.in_worker = False

    def init(self, original: Any) -> Any:
        """A fetcher whose collate function is timed."""

        @functools.wraps(original)
        def __init__(fetcher: Any, dataset: Any, auto_collation: Any, collate_fn: Any, drop_last: Any) -> None:  # noqa: N807
            original(fetcher, dataset, auto_collation, collate_fn, drop_last)
            fetcher.collate_fn = self._collating(collate_fn)

        return __init__

    def _collating(self, collate_fn: Any) -> Any:
        asleep = self.recorder.doze.asleep

        def collate(data: Any) -> Any:
            if asleep[0]:
                return collate_fn(data)
            start = clock()
            try:
                return collate_fn(data)
            finally:
                self.collated_ns += clock() - start

        return collate

    def fetch(self, original: Any) -> Any:
        """A fetch that leaves a row."""
        home, plan, put = self.recorder.home, probe_making.PLAN, self.recorder.batches.extend
        rest, asleep = ZEROS[: ROW - LIKE], self.recorder.doze.asleep

        @functools.wraps(original)
        def fetch(fetcher: Any, index: Any) -> Any:
            if asleep[0] or get_ident() != home[0]:  # asleep: somebody has put something around this one
                return original(fetcher, index)
            label = plan.pop(0) if plan else ""
            self.collated_ns = 0
            samples = len(index) if isinstance(index, list) else 1
            if self._since_ns < ACCOUNT_NS and not label:
                start = clock()
                data = original(fetcher, index)
                end = clock()
                put((ALIKE, start, end, samples, self.collated_ns))
                put(rest)
                self._since_ns += end - start
                return data
            accounts = self._accounts_of(home[0])
            counted, before, start = COUNTS.read(), accounts.read(), clock()
            if label:
                data = probe_making.make(label, lambda: original(fetcher, index), samples, self.recorder)
            else:
                data = original(fetcher, index)
            end, after = clock(), accounts.read()
            cpu, opens, _, requests, net = (b - a for a, b in zip(counted, COUNTS.read(), strict=True))
            found: tuple[int, ...] = (cpu, opens, COUNTS.read()[2], requests, net)
            found += (*fingerprint(data), threads()) if label else (0, 0, 0)
            found += (self._private_bytes(end),)
            self._row(start, end, samples, [b - a for a, b in zip(before, after, strict=True)], found)
            self._tell_sources()
            return data

        return fetch

    def _tell_sources(self) -> None:
        """What a worker reads, once it has made some batches: advice has the user's own paths in it."""
        self._accounted += 1
        if self.in_worker and self._accounted == SOURCES_AFTER:
            self.recorder.note("sources", files=self.recorder.attempt(files_read) or ())

    def _private_bytes(self, now: int) -> int:
        """Memory of this worker alone, read now and then; 0 in between, and where the main thread makes batches."""
        if not self.in_worker or now < self._weigh_ns:
            return 0
        before = time.thread_time_ns()
        size = private_bytes(os.getpid()) or 0
        self._weigh_ns = now + max(WEIGH_NS, 100 * (time.thread_time_ns() - before))
        return size

    def _accounts_of(self, thread: int) -> Accounts:
        if self._accounts is None or self._thread != thread:
            self._accounts, self._thread = Accounts(), thread
        return self._accounts

    def _row(self, start: int, end: int, samples: int, spent: list[int], found: tuple[int, ...]) -> None:
        user, system, ran, queued, *rest = spent
        wall = self._since_ns = end - start
        scale = ran / (user + system) if user + system else 0.0  # the scheduler's clock is finer than the two
        row = (MADE, start, end, samples, self.collated_ns, int(user * scale), int(system * scale), ran, queued)
        self._put((*row, max(wall - ran - queued, 0), *rest, *found))

    def _put(self, row: tuple[int, ...]) -> None:
        self.recorder.batches.extend(row)
        self.recorder.batches.extend(ZEROS[: ROW - len(row)])

    def forget(self) -> None:
        """In a new process the accounts are another thread's."""
        self._accounts, self._since_ns, self._accounted = None, ACCOUNT_NS, 0


# ---- workers ---------------------------------------------------------------------------------------------


def _watched_loop(original: Any, recorder: Recorder, bench: Bench) -> Any:
    @functools.wraps(original)
    def _worker_loop(*args: Any, **kwargs: Any) -> None:
        try:
            bench.forget()
            bench.in_worker = True
            COUNTS.forget()
            COUNTS.start()
            worker = args[10] if len(args) > 10 else None  # noqa: PLR2004  worker_id's place in torch's signature
            recorder.note("worker", worker=worker, loader=recorder.iterating, **about_process())
            recorder.ensure_running()
            _time_sending(recorder)
        except Exception as error:  # noqa: BLE001  the worker must work
            recorder.note("trouble", text=f"a worker is not observed: {error!r}")
        original(*args, **kwargs)

    return _worker_loop


def _time_sending(recorder: Recorder) -> None:
    """A batch is copied into shared memory when its queue pickles it, in the queue's own thread."""
    from multiprocessing import queues

    class Pickler(queues._ForkingPickler):  # type: ignore[name-defined,misc]  # noqa: SLF001
        @classmethod
        def dumps(cls, obj: Any, protocol: int | None = None) -> Any:
            start = clock()
            data = super().dumps(obj, protocol)
            end = clock()
            size, tensors = weigh(obj)
            row = (SENT, start, end, len(data), size, tensors)
            recorder.batches.extend(row + (0,) * (ROW - len(row)))
            return data

    queues._ForkingPickler = Pickler  # type: ignore[attr-defined]  # noqa: SLF001


def weigh(batch: Any) -> tuple[int, int]:
    """Bytes and number of the tensors and arrays in a batch."""
    sizes = [int(part.nbytes) for part in parts(batch) if hasattr(part, "nbytes")]
    return sum(sizes), len(sizes)
