"""Memory, processes and device of a run, folded from what is read from outside as it comes. Pure."""

from collections import deque
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import pairwise

from stoker.attribute.series import Series
from stoker.attribute.steady import quantile
from stoker.records.live import LiveMemory, LiveProcess, Pulse
from stoker.records.observed import Machine, Meter

GROWTH_S, GROWTH_LEAST_S = 600.0, 45.0
"""Growth is judged over this long, and not before the second."""
GROWTH_LEAST_BYTES, GROWTH_LEAST_SHARE = 48 << 20, 0.02
"""Growing by less than both is the usual coming and going of an allocator."""
PARTS, LEAST_RISE, MOST_RISE = 5, 0.05, 0.7
"""Memory that grows does so in each of this many parts: in none by less or more than these shares of all of it."""
BUSY_S = 10.0
"""The device's busy share is over this long."""

Role = tuple[str, int | None]


class Gauges:
    """The machine's side of a run."""

    def __init__(self, start_ns: int, machine: Machine | None) -> None:
        self.series = Series(start_ns)
        self.last: Meter | None = None
        self._before: Meter | None = None
        self._machine = machine
        self._sizes: deque[tuple[int, int]] = deque()
        self._shm_first: int | None = None
        self._busy: deque[tuple[int, float]] = deque()
        self._pulse: Pulse | None = None
        self._workers: AbstractSet[str] = frozenset()

    def take(self, meter: Meter, workers: AbstractSet[str]) -> None:
        """The next reading. `workers` are the processes that were forked from others."""
        self._before, self.last, self._workers = self.last, meter, workers
        used = sum(sizes(meter, workers).values())
        self._sizes.append((meter.time_ns, used))
        while self._sizes[0][0] < meter.time_ns - GROWTH_S * 1e9:
            self._sizes.popleft()
        if self._shm_first is None:
            self._shm_first = meter.shm_bytes
        self.series.memory(meter, used)
        if meter.device_busy_share is not None:
            self._keep_busy(meter.time_ns, meter.device_busy_share)

    def beat(self, pulse: Pulse) -> None:
        """What the process itself said of its device."""
        before, self._pulse = self._pulse, pulse
        if before is None or pulse.busy_s is None or before.busy_s is None or pulse.time_ns <= before.time_ns:
            return
        share = (pulse.busy_s - before.busy_s) / ((pulse.time_ns - before.time_ns) / 1e9)
        self._keep_busy(pulse.time_ns, min(max(share, 0.0), 1.0))

    def _keep_busy(self, time_ns: int, share: float) -> None:
        self.series.busy(time_ns, share)
        self._busy.append((time_ns, share))
        while self._busy[0][0] < time_ns - BUSY_S * 1e9:
            self._busy.popleft()

    def busy_share(self, now_ns: int) -> float | None:
        """How busy the device was lately; 0 once it has said nothing for that long, None if it never did."""
        if not self._busy:
            return None
        recent = [share for time_ns, share in self._busy if time_ns >= now_ns - BUSY_S * 1e9]
        return sum(recent) / len(recent) if recent else 0.0

    @property
    def pulse(self) -> Pulse | None:
        """The last one."""
        return self._pulse

    def memory(self) -> LiveMemory | None:
        """What the run holds, what is left, and when that will be used up."""
        if self.last is None:
            return None
        used, left = sum(sizes(self.last, self._workers).values()), self.last.free_bytes
        grows = growth_bytes_per_s(self._sizes)
        shm = self.last.shm_bytes
        return LiveMemory(
            used_bytes=used,
            left_bytes=left,
            limit_bytes=used + left if left is not None else None,
            grows_bytes_per_s=grows,
            full_in_s=left / grows if grows and left is not None else None,
            shm_used_bytes=shm,
            shm_limit_bytes=self._machine.shm_bytes if self._machine else None,
        )

    def processes(self, roles: Mapping[int, Role]) -> tuple[LiveProcess, ...]:
        """Everything that runs, those that train first, then workers, then the rest."""
        if self.last is None:
            return ()
        order = ["main", "rank", "worker", "other"]
        found = [
            _process(pid, size, roles, self._cpu_share(pid)) for pid, size in sizes(self.last, self._workers).items()
        ]
        return tuple(sorted(found, key=lambda one: (order.index(one.role), one.number or 0, one.pid)))

    def _cpu_share(self, pid: str) -> float | None:
        if self.last is None or self._before is None or pid not in self._before.cpu_s or pid not in self.last.cpu_s:
            return None
        span_s = (self.last.time_ns - self._before.time_ns) / 1e9
        return max(self.last.cpu_s[pid] - self._before.cpu_s[pid], 0.0) / span_s if span_s > 0 else None


def _process(pid: str, size: int, roles: Mapping[int, Role], cpu_share: float | None) -> LiveProcess:
    role, number = roles.get(int(pid), ("other", None))
    return LiveProcess(int(pid), role, number, size, cpu_share)  # type: ignore[arg-type]  # roles hold these words only


def sizes(meter: Meter, workers: AbstractSet[str]) -> dict[str, int]:
    """Memory of each process: all it has in memory, but of a worker only what it does not share with its parent."""
    return {pid: meter.private_bytes.get(pid, rss) if pid in workers else rss for pid, rss in meter.rss_bytes.items()}


def growth_bytes_per_s(sizes_at: Sequence[tuple[int, int]]) -> float | None:
    """How fast memory grows, from the medians of its fifths; None unless each is above the one before.

    A jump, as when a second model is loaded, is not growth: it will not come again.
    """
    points = list(sizes_at)
    if len(points) < 3 * PARTS or (points[-1][0] - points[0][0]) / 1e9 < GROWTH_LEAST_S:
        return None
    edges = [len(points) * i // PARTS for i in range(PARTS + 1)]
    parts = [points[a:b] for a, b in pairwise(edges)]
    heights = [quantile([float(size) for _, size in part], 0.5) for part in parts]
    times = [quantile([float(time_ns) for time_ns, _ in part], 0.5) for part in parts]
    grown = heights[-1] - heights[0]
    if grown <= max(GROWTH_LEAST_BYTES, GROWTH_LEAST_SHARE * heights[0]) or times[-1] <= times[0]:
        return None
    rises = [(b - a) / grown for a, b in pairwise(heights)]
    return grown / ((times[-1] - times[0]) / 1e9) if min(rises) > LEAST_RISE and max(rises) < MOST_RISE else None
