"""A run's course for a chart: at most a few hundred stretches, however long the run is."""

from collections.abc import Iterator
from dataclasses import dataclass

from stoker.records.live import Moment
from stoker.records.observed import Meter

MOST = 480
"""Stretches kept; when there are more, neighbours are put together and each stretch is twice as long."""


@dataclass(slots=True)
class _Stretch:
    steps: int = 0
    spent_ns: int = 0
    wait_ns: int = 0
    busy: float = 0.0
    busy_count: int = 0
    used_bytes: int = 0
    left_bytes: int | None = None

    def add(self, other: "_Stretch") -> None:
        self.steps += other.steps
        self.spent_ns += other.spent_ns
        self.wait_ns += other.wait_ns
        self.busy += other.busy
        self.busy_count += other.busy_count
        self.used_bytes = max(self.used_bytes, other.used_bytes)
        known = [left for left in (self.left_bytes, other.left_bytes) if left is not None]
        self.left_bytes = min(known, default=None)


class Series:
    """Sums per stretch of time, in order."""

    def __init__(self, start_ns: int) -> None:
        self._start_ns = start_ns
        self._width_ns = 1_000_000_000
        self._stretches: list[_Stretch] = []

    def _at(self, time_ns: int) -> _Stretch:
        place = (time_ns - self._start_ns) // self._width_ns if time_ns > self._start_ns else 0
        if place < len(self._stretches):
            return self._stretches[place]
        while place >= MOST:
            self._halve()
            place = max(time_ns - self._start_ns, 0) // self._width_ns
        while len(self._stretches) <= place:
            self._stretches.append(_Stretch())
        return self._stretches[place]

    def _halve(self) -> None:
        self._width_ns *= 2
        for i in range(0, len(self._stretches), 2):
            if i + 1 < len(self._stretches):
                self._stretches[i].add(self._stretches[i + 1])
        del self._stretches[1::2]

    def step(self, time_ns: int) -> None:
        """A step was made."""
        self._at(time_ns).steps += 1

    def spend(self, end_ns: int, spent_ns: int, *, waits: bool) -> None:
        """Time of the main thread, up to `end_ns`; what is longer than a stretch belongs to several."""
        if spent_ns <= self._width_ns:  # nearly always
            stretch = self._at(end_ns)
            stretch.spent_ns += spent_ns
            stretch.wait_ns += spent_ns if waits else 0
            return
        while spent_ns > 0:
            part_ns = min(spent_ns, self._width_ns)
            stretch = self._at(end_ns)
            stretch.spent_ns += part_ns
            stretch.wait_ns += part_ns if waits else 0
            end_ns, spent_ns = end_ns - part_ns, spent_ns - part_ns

    def busy(self, time_ns: int, share: float) -> None:
        """The device, over the time since it was read before."""
        stretch = self._at(time_ns)
        stretch.busy += share
        stretch.busy_count += 1

    def memory(self, meter: Meter, used_bytes: int) -> None:
        """What the run held at this moment."""
        stretch = self._at(meter.time_ns)
        stretch.add(_Stretch(used_bytes=used_bytes, left_bytes=meter.free_bytes))

    def moments(self, other: "Series") -> Iterator[Moment]:
        """Everything of this series, with memory and device of another one."""
        width_ns = max(self._width_ns, other._width_ns)  # noqa: SLF001  its own kind
        ours, theirs = self._by(width_ns), other._by(width_ns)  # noqa: SLF001
        for place in range(max(len(ours), len(theirs))):
            loop = ours[place] if place < len(ours) else _Stretch()
            machine = theirs[place] if place < len(theirs) else _Stretch()
            yield _moment((place + 0.5) * width_ns / 1e9, width_ns / 1e9, loop, machine)

    def _by(self, width_ns: int) -> list[_Stretch]:
        """A copy in wider stretches; widths are powers of two apart."""
        factor = width_ns // self._width_ns
        found: list[_Stretch] = []
        for i, stretch in enumerate(self._stretches):
            if i % factor == 0:
                found.append(_Stretch())
            found[-1].add(stretch)
        return found


def _moment(time_s: float, width_s: float, loop: _Stretch, machine: _Stretch) -> Moment:
    return Moment(
        time_s=time_s,
        steps_per_s=loop.steps / width_s if loop.steps or loop.spent_ns else None,
        wait_share=min(loop.wait_ns / loop.spent_ns, 1.0) if loop.spent_ns else None,
        device_busy_share=min(machine.busy / machine.busy_count, 1.0) if machine.busy_count else None,
        used_bytes=machine.used_bytes or None,
        left_bytes=machine.left_bytes,
    )
