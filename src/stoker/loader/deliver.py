"""Batches in order, made ahead by threads, as many and as far ahead as the consumer needs and the budget allows."""

import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from stoker.errors import ClosedError, ForkedError, LoaderError
from stoker.loader.cores import use_one_core
from stoker.loader.fetch import Batches, Failed
from stoker.loader.hold import Hold
from stoker.loader.ranks import Ticket
from stoker.loader.source.interface import Reader
from stoker.loader.waits import HEAR_S
from stoker.loader.windows import Job, Ready, Windows

CLOSED = "the loader is closed; make a new one, or keep it open while iterating"
FORKED = "this iterator belongs to the parent process; call iter(loader) again in the child"
_JOIN_S = 10.0
_REVIEW_BATCHES = 16
"""How often concurrency and depth are reconsidered."""


@dataclass(slots=True)
class Times:
    """Where time went, in seconds. Waits of the consumer near 0 mean that loading costs the training nothing."""

    consumer_wait_s: float = 0.0
    gather_s: float = 0.0
    """Summed over threads."""
    load_s: float = 0.0
    """Order and decoding, summed over threads."""
    thread_idle_s: float = 0.0
    batches: int = 0
    rows: int = 0
    starved: int = 0
    """Batches that the consumer had to wait for."""


class Stream:
    """An endless sequence of batches. One consumer at a time; `close` ends the threads."""

    def __init__(
        self,
        tickets: Iterator[Ticket],
        windows: Windows,
        batches: Batches,
        *,
        reader: Reader | None = None,
        threads: int,
        depth: int,
        run: int = 1,
        times: Times,
    ) -> None:
        self._tickets = tickets
        self._windows = windows
        self._batches = batches
        self._reader = reader
        self._hold = Hold()
        self._upcoming: deque[Ticket] = deque()
        """Tickets from the next to be taken on; the first `_handed - _taken` of them are being made."""
        self._made: dict[int, Any] = {}
        self._handed = 0
        self._taken = 0
        self._doing: dict[int, Ticket] = {}
        self._lock = threading.RLock()
        self._work = threading.Condition(self._lock)
        self._rest = threading.Condition(self._lock)
        """Where threads wait that may not work now: a wake-up for work must not go to one of them."""
        self._out = threading.Condition(self._lock)
        self._closed = False
        self._fault: BaseException | None = None
        """Why a thread could not go on, besides what belongs to a batch."""
        self._stopped: Job | None = None
        """Without threads: a job that Ctrl-C ended half-way, to be done again."""
        self._pid = os.getpid()
        self.times = times
        self.threads_most = threads
        self.depth_most = max(1, depth)
        self.threads = threads
        """Threads that may work at once: all at first, because the first batch is waited for."""
        self.depth = min(self.depth_most, 2 + self.threads)
        """Batches that may be ready or under way."""
        self.run_most = run
        self.run = 1
        """Batches made at once: one at first, because the first is waited for."""
        self._calm = 0
        self._starved = 0
        self._pool: list[threading.Thread] = []
        self._grow()

    # ---- the consumer's side

    def at(self) -> int:
        """The epoch of the next batch; -1 if there is none, because the stream was closed or this is a fork."""
        if self._closed or self._pid != os.getpid():
            return -1
        with self._lock:
            return self._peek(0).epoch

    def held_bytes(self) -> int:
        """Memory of loaded blocks."""
        return self._windows.held_bytes

    def read_bytes(self) -> int:
        """What was read of files for loaded blocks."""
        return self._windows.read_bytes

    def get(self, epoch: int) -> tuple[int, Any] | None:
        """The next batch of an epoch and the global position after it; None once the epoch is over.

        An exception that making the batch raised is raised here, in its turn.
        """
        self._check()
        with self._lock:
            ticket = self._peek(0)
            if ticket.epoch != epoch:
                return None
            if self._taken not in self._made:
                self._wait()
            result = self._made.pop(self._taken)
            self._upcoming.popleft()
            self._taken += 1
            self.times.batches += 1
            self._review()
            self._work.notify()
        if isinstance(result, Failed):
            raise result.error
        self.times.rows += result.rows
        return ticket.after, self._batches.deliver(result)

    def _check(self) -> None:
        if self._pid != os.getpid():
            raise ForkedError(FORKED)
        if self._closed:
            raise ClosedError(CLOSED)

    def _wait(self) -> None:
        begin = time.perf_counter()
        self._starved += 1
        self.times.starved += 1
        while self._taken not in self._made:
            if self._closed:
                raise ClosedError("the loader was closed while its iterator waited for a batch")
            if self._fault is not None:
                raise self._fault
            if self.threads_most:
                self._out.wait(HEAR_S)
            else:
                self._stopped = self._stopped or self._job()
                self._run(self._stopped)
                self._stopped = None
        self.times.consumer_wait_s += time.perf_counter() - begin

    def _review(self) -> None:
        """More threads and depth while the consumer waits; fewer when it never does."""
        if self.times.batches % _REVIEW_BATCHES:
            return
        threads = self.threads
        if self._starved:
            self.threads = min(self.threads_most, self.threads + 1)
            self.depth = min(self.depth_most, max(2 + self.threads, self.depth + self.depth // 2))
            self.run = max(1, min(self.run_most, 2 * self.run, self.depth // (self.threads + 1)))
            self._grow()
            self._calm = 0
        elif len(self._made) >= self.depth - 2:
            self._calm += 1
            if self._calm % 8 == 0:
                self.threads = max(1, self.threads - 1) if self.threads_most else 0
                self.run = max(1, self.run // 2)
        if self.threads != threads:  # who may work now, and who may not any more, finds its place
            self._work.notify_all()
            self._rest.notify_all()
        self._starved = 0

    # ---- the threads' side

    def _grow(self) -> None:
        while len(self._pool) < self.threads:
            started = threading.Event()
            arguments = (self, len(self._pool), started)
            thread = threading.Thread(target=_serve, args=arguments, name="stoker-fetch", daemon=True)
            self._pool.append(thread)
            thread.start()
            # A fork while a thread sets torch's thread count would copy locks that nobody opens in the child.
            started.wait()

    def _peek(self, ahead: int) -> Ticket:
        while len(self._upcoming) <= ahead:
            try:
                self._upcoming.append(next(self._tickets))
            except StopIteration:  # they have no end: a fault ended them, and the consumer would take it for an epoch's
                raise LoaderError("the sequence of batches broke off; make a new loader") from self._fault
        return self._upcoming[ahead]

    def _job(self) -> Job | None:
        """What to do next: a batch if there is room, what it lacks, or a piece of the next window."""
        ahead = self._handed - self._taken
        ticket = self._peek(ahead)
        needed = self._windows.needed(ticket)
        lacking = [window for window in needed if not window.is_ready]
        for window in lacking:
            job = self._windows.job(window)
            if job is not None:
                return job
        if lacking:  # others are at it
            return self._windows.ahead(lacking[-1], 1.0) if lacking[-1].window is not None else None
        room = ahead < self.depth
        progress = needed[-1].share_before(ticket.start) if room else 1.0
        job = self._windows.leaving() or self._windows.ahead(needed[-1], progress)
        return job or (self._make(ahead, needed) if room else None)

    def _make(self, ahead: int, needed: list[Ready]) -> Job:
        """A batch, or a few that follow each other in one window, where that is faster."""
        first, tickets = self._handed, [self._peek(ahead)]
        for more in range(1, min(self.run, self.depth - ahead)):
            following = self._peek(ahead + more)
            if len(needed) > 1 or self._windows.needed(following) != needed:
                break
            tickets.append(following)
        self._handed += len(tickets)
        self._doing[first] = tickets[0]

        def done(results: Any) -> None:
            del self._doing[first]
            if isinstance(results, BaseException):  # nothing of a batch: a fault of ours
                results = [Failed(results)] * len(tickets)
            self._made.update(enumerate(results, first))
            oldest = next(iter(self._doing.values()), None)
            self._windows.release(oldest or self._peek(self._handed - self._taken))
            if first <= self._taken:
                self._out.notify()

        return Job(lambda: self._batches.make_all(tickets, needed, self._reader), done, "gather_s")

    def _run(self, job: Job | None) -> None:
        """Do a job without the lock; the caller holds it before and after.

        What a job raises belongs to the consumer, at its turn; in the consumer's own thread Ctrl-C ends it at once.
        """
        assert job is not None, "nothing to do, and nobody else is working"
        self._lock.release()
        begin = time.perf_counter()
        try:
            with self._hold.at_work():
                result = job.run()
        except BaseException as error:
            if not self.threads_most and not isinstance(error, Exception):
                raise
            result = error
        finally:
            took = time.perf_counter() - begin
            self._lock.acquire()
        setattr(self.times, job.stage, getattr(self.times, job.stage) + took)
        job.done(result)
        if job.stage != "gather_s":
            self._work.notify_all()

    def serve(self, number: int) -> None:
        """A thread's life. A fault of ours ends it, and reaches the consumer."""
        with self._lock:
            try:
                self._serve(number)
            except BaseException as error:  # noqa: BLE001
                self._fault = self._fault or error
                self._out.notify_all()

    def _serve(self, number: int) -> None:
        while not self._closed:
            may_work = number < self.threads
            job = self._job() if may_work else None
            if job is None:
                begin = time.perf_counter()
                (self._work if may_work else self._rest).wait()
                self.times.thread_idle_s += time.perf_counter() - begin
            else:
                self._run(job)
                job = None  # a waiting thread must not keep a batch alive

    def close(self, *, join: bool = True) -> None:
        """End the threads and drop what is ready. Safe to call twice, from any thread, and in a forked child."""
        if self._pid != os.getpid():
            return
        # A garbage collection can call this from inside the lock; joining would then wait for ourselves.
        inside = self._lock._is_owned()  # type: ignore[attr-defined]  # noqa: SLF001
        with self._lock:
            self._closed = True
            self._made.clear()
            self._fault = self._stopped = None
            for waiting in (self._work, self._rest, self._out):
                waiting.notify_all()
        self._hold.close()
        if self._reader is not None:
            self._reader.close()
        for thread in self._pool if join and not inside else ():
            if thread is not threading.current_thread():
                thread.join(_JOIN_S)


def _serve(stream: Stream, number: int, started: threading.Event) -> None:
    use_one_core()
    started.set()
    stream.serve(number)
