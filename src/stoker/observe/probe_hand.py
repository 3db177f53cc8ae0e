"""Experiments on a loop that fetches its data by hand: some of its steps are timed as they are, and one is inspected.

There is no loader to take batches from, so nothing is replayed: what the loop waits for its data is told apart later,
by the gap before the forward pass.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

from stoker.observe.probe_container import Limits, Schedule
from stoker.observe.probe_gather import compiled
from stoker.observe.probe_inspect import Inspector, note_inspection
from stoker.observe.probe_replay import Timing
from stoker.observe.recorder import Recorder, clock
from stoker.records.codec import encode
from stoker.records.probes import Window

FIRST_STEPS, BETWEEN_S = 20, 2.0
"""Steps before the first experiment, and seconds between two."""
TIMED_S, TIMED_LEAST, TIMED_MOST = 0.8, 4, 40
"""How long one timing is, in seconds and in steps."""
TIMINGS, TRIES = 4, 10
FEWER = 6
"""Timings where torch has more threads than there are cores: with fewer threads and as it is, in turns."""
UNEVEN = 3.0
"""Where a step takes so many times the median one, something else was in it, say a validation."""


class ByHand:
    """`stepped` is called after each step of an optimizer, while no loader trains."""

    def __init__(
        self,
        torch: Any,
        recorder: Recorder,
        schedule: Schedule,
        limits: Limits,
        is_distributed: Callable[[], bool],
    ) -> None:
        self._torch, self._recorder, self._schedule, self._limits = torch, recorder, schedule, limits
        self._is_distributed = is_distributed
        self._timings = TIMINGS
        self._counts: Counter[int] = Counter()
        self._chosen: int | None = None
        self._last_ns = self._due_ns = self._begun_ns = 0
        self._timing: Timing | None = None
        self._steps_ns: list[int] = []
        self._wanted = TIMED_MOST
        self._timed = self._tried = 0
        self._inspector: Inspector | None = None
        self._inspected = False

    @property
    def is_over(self) -> bool:
        """True if nothing is left to try."""
        return self._timed >= self._timings or (self._tried >= TRIES and self._timing is None)

    def stepped(self, optimizer: int) -> None:
        """Begin or end what is due. Of several optimizers the one that steps most rarely closes a step."""
        if optimizer != self._chosen:
            self._choose(optimizer)
            return
        now, before_ns = clock(), self._last_ns
        self._last_ns = now
        if now < self._due_ns or not before_ns:
            return
        if self._inspector is not None:
            self._end_inspection()
        elif self._timing is None:
            self._begin(now, (now - before_ns) / 1e9)
        else:
            self._steps_ns.append(now - before_ns)
            if len(self._steps_ns) == self._wanted:
                self._end_timing()
        self._last_ns = clock()

    def _choose(self, optimizer: int) -> None:
        if self._chosen is None:
            self._counts[optimizer] += 1
            if self._counts.total() >= FIRST_STEPS:
                self._chosen = min(self._counts, key=lambda number: (self._counts[number], number))

    def stop(self) -> None:
        """The run is over, or a loader trains after all."""
        if self._inspector is not None:
            self._end_inspection()
        if self._timing is not None:
            self._timing.drop()
        self._timing, self._timed = None, self._timings

    def _begin(self, now: int, step_s: float) -> None:
        if self._is_distributed():  # the others would wait for this rank
            self._timed = self._timings
            return
        if self._tried and not self._inspected:
            self._inspected = True
            if not compiled():
                self._inspector = Inspector(self._torch)
                self._begun_ns = now
                self._inspector.enter()
            return
        self._tried += 1
        self._steps_ns = []
        self._wanted = min(max(int(TIMED_S / max(step_s, 1e-4)), TIMED_LEAST), self._wanted)
        fewer = self._limits.fewer_threads(self._torch)
        if fewer is not None:
            self._timings = FEWER
        self._timing = Timing(
            self._torch, self._schedule, self._wanted, None, threads=fewer if self._timed % 2 else None
        )
        self._timing.step()

    def _end_timing(self) -> None:
        timing, self._timing = self._timing, None
        replay = timing.end(0) if timing is not None else None
        if timing is None or max(self._steps_ns) > UNEVEN * sorted(self._steps_ns)[len(self._steps_ns) // 2]:
            self._wanted = max(self._wanted // 2, TIMED_LEAST)
        elif replay is not None:
            self._recorder.note(timing.note, **encode(replay))
            self._timed += 1
        self._rest()

    def _end_inspection(self) -> None:
        inspector, self._inspector = self._inspector, None
        if inspector is not None:
            note_inspection(inspector, self._torch, self._recorder)
            window = Window("inspection", self._begun_ns, clock(), 0.0, 1)
            self._recorder.note("window", **encode(window))
        self._rest()

    def _rest(self) -> None:
        self._due_ns = clock() + int(BETWEEN_S * 1e9)
