"""A device's own clock: work is queued and returns at once, waiting sleeps, and busy time burns no CPU."""

import threading
import time
from collections import deque
from dataclasses import dataclass

# A sleeping thread is woken late: by a timer's slack, and by milliseconds when both cores are busy. What is late
# by less than this is the scheduler's doing and is not passed on to the device; more is the host's own stall.
SCHEDULER_LATE_S = 0.05
# What torch spends, cold after a sleep, between a call in the script and our first line (measured: 15 to 40 us).
DISPATCH_S = 20e-6
SPANS_KEPT = 100_000


@dataclass(frozen=True, slots=True)
class Span:
    """One piece of work on the device, in `time.perf_counter` seconds."""

    kind: str
    start_s: float
    end_s: float


class Timeline:
    """One in-order queue of work. `busy_s` grows when work is queued; `spans` keeps the latest pieces.

    Two kinds of host time are not passed on to the device, because they are the simulation's own: being woken
    late, and what `forgive` is told. The next piece of work starts as if the host had been that much earlier.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free_at_s = self._mark_s = time.perf_counter()
        self._forgiven_s = 0.0
        self.busy_s = 0.0
        self.spans: deque[Span] = deque(maxlen=SPANS_KEPT)

    @property
    def free_at_s(self) -> float:
        """When all that is queued will be done."""
        return self._free_at_s

    def queue(self, kind: str, seconds: float) -> float:
        """Put work behind what is queued already; returns when it will be done."""
        with self._lock:
            self._mark_s = time.perf_counter()
            start = max(self._free_at_s, self._mark_s - self._forgiven_s)
            self._free_at_s = start + seconds
            # Used up once the device is busy beyond now; a short copy leaves the rest for what follows.
            self._forgiven_s = min(self._forgiven_s, max(0.0, self._mark_s - self._free_at_s))
            self.busy_s += seconds
            self.spans.append(Span(kind, start, self._free_at_s))
            return self._free_at_s

    def forgive(self, since_s: float) -> None:
        """Do not count the host's time since then: it went into simulating."""
        with self._lock:
            now = time.perf_counter()
            self._forgiven_s += now - max(since_s - DISPATCH_S, self._mark_s)
            self._mark_s = now

    def wait(self, until_s: float) -> None:
        """Sleep until the device has reached this time."""
        slept = False
        while (left := until_s - time.perf_counter()) > 0:
            time.sleep(left)
            slept = True
        if slept:
            with self._lock:
                self._mark_s = time.perf_counter()
                late = self._mark_s - until_s
                self._forgiven_s = late if late < SCHEDULER_LATE_S else 0.0

    def synchronize(self) -> None:
        """Sleep until all that is queued now is done."""
        self.wait(self._free_at_s)


class Event:
    """A mark on a device's timeline, used like `torch.Event`: record now, read later, no sync between."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._at_s: float | None = None

    def record(self) -> None:
        """Mark the moment when all that is queued so far will be done."""
        self._at_s = max(self._timeline.free_at_s, time.perf_counter())

    def query(self) -> bool:
        """True once the device has passed the mark."""
        return self._at_s is not None and time.perf_counter() >= self._at_s

    def synchronize(self) -> None:
        """Wait until the device has passed the mark."""
        self._timeline.wait(self._marked())

    def elapsed_time(self, end: "Event") -> float:
        """Milliseconds on the device from this mark to `end`, as torch counts them."""
        return (end._marked() - self._marked()) * 1e3  # noqa: SLF001  its own kind

    def _marked(self) -> float:
        if self._at_s is None:
            raise RuntimeError("this event was never recorded; call record() first")
        return self._at_s
