"""Cut the experiments out of a track: what is left is the run as it would have been without them."""

import dataclasses
from bisect import bisect_right
from collections.abc import Sequence

from stoker.records.observed import Track


class Clock:
    """Time without the windows."""

    def __init__(self, windows: Sequence[tuple[int, int]]) -> None:
        self._starts = [start for start, _ in windows]
        self._ends = [end for _, end in windows]
        self._before = [0]
        for start, end in windows:
            self._before.append(self._before[-1] + end - start)

    def is_inside(self, time_ns: int) -> bool:
        """True within a window; its last moment is outside."""
        i = bisect_right(self._starts, time_ns) - 1
        return i >= 0 and time_ns < self._ends[i]

    def read(self, time_ns: int) -> int:
        """The same moment on the clock that stands still during windows."""
        i = bisect_right(self._starts, time_ns) - 1
        if i < 0:
            return time_ns
        return time_ns - self._before[i] - min(time_ns - self._starts[i], self._ends[i] - self._starts[i])


def windows_of(track: Track) -> list[tuple[int, int]]:
    """Start and end of each experiment, in order."""
    windows = sorted((window.start_ns, window.end_ns) for window in track.probes.windows)
    return [(start, end) for start, end in windows if end > start]


def breaks(track: Track) -> list[int]:
    """Where the windows were, on the clock without them, in order."""
    windows = windows_of(track)
    clock = Clock(windows)
    return [clock.read(end) for _, end in windows]


def excise(track: Track) -> Track:
    """The track without its windows, and with their length taken from every later time."""
    windows = windows_of(track)
    if not windows:
        return track
    clock = Clock(windows)
    events = [i for i, time_ns in enumerate(track.times_ns) if not clock.is_inside(time_ns)]
    samples = [i for i, time_ns in enumerate(track.sample_times_ns) if not clock.is_inside(time_ns)]
    work = [i for i, time_ns in enumerate(track.device_starts_ns) if not clock.is_inside(time_ns)]
    return dataclasses.replace(
        track,
        start_ns=clock.read(track.start_ns),
        end_ns=clock.read(track.end_ns),
        times_ns=tuple(clock.read(track.times_ns[i]) for i in events),
        codes=tuple(track.codes[i] for i in events),
        sample_times_ns=tuple(clock.read(track.sample_times_ns[i]) for i in samples),
        sample_lines=tuple(track.sample_lines[i] for i in samples),
        cuts=tuple(dataclasses.replace(cut, time_ns=clock.read(cut.time_ns)) for cut in track.cuts),
        device_starts_ns=tuple(clock.read(track.device_starts_ns[i]) for i in work),
        device_ends_ns=tuple(clock.read(track.device_ends_ns[i]) for i in work),
        device_work=tuple(track.device_work[i] for i in work),
    )
