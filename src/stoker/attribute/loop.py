"""A training loop folded as its events come: counts, sums and the last minutes, never all of them. Pure."""

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import itemgetter

from stoker.attribute.phases import NAMES
from stoker.attribute.series import Series
from stoker.attribute.structure import RIVAL_SHARE, TRAINS_SHARE
from stoker.attribute.timeline import KINDS, LOADING, Stack
from stoker.records.live import LiveEpoch
from stoker.records.observed import ARG, KIND, Kind, LoaderFacts, PhaseName

LATELY_S = 30.0
"""What "lately" means in a live view: long enough for slow steps, short enough to see a change."""
MOST_STEPS = 4096
FEWEST_STEPS = 5
"""Steps that a rate is taken from, also if they are older than that."""

_MOVES = {Kind.NEXT, Kind.FORWARD, Kind.BACKWARD, Kind.OPTIMIZER, Kind.SAVE}
"""An end of one of these shows that the loop is not stuck."""

_COUNTED = {Kind.ITER, Kind.NEXT, Kind.EXHAUSTED, *_MOVES}

Key = tuple[Kind | None, int, bool]
"""What time was spent on: a kind, its loader, and whether inside a section without gradients."""


@dataclass(slots=True)
class _Pass:
    """One pass over a loader, in sums."""

    start_ns: int
    first_ns: int = 0
    asked_ns: int = 0
    last_ns: int = 0
    end_ns: int = 0
    wait_ns: int = 0
    batches: int = 0
    fresh: bool = False


@dataclass(slots=True)
class _Tally:
    """All passes over one loader. Without a loader, an optimizer's steps stand in for its batches."""

    passes: list[_Pass] = field(default_factory=list)
    batches: int = 0
    credit: int = 0
    steps: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=MOST_STEPS))
    disturbed: bool = False


class Loop:
    """What one process's events amount to so far."""

    def __init__(self, start_ns: int) -> None:
        self.series = Series(start_ns)
        self.moved_ns: int | None = None
        self._stack = Stack()
        self._cursor_ns = start_ns
        self._until_ns = 0  # the end of the second that is being summed up
        self._began = False
        self._tallies: dict[int, _Tally] = {}
        self._seconds: deque[tuple[int, Counter[Key]]] = deque()
        self._apart: Counter[int] = Counter()
        """Of models that ran without gradients since the last batch: nanoseconds, by second."""

    def take(self, times_ns: Sequence[int], codes: Sequence[int]) -> None:
        """New events. Those seen after the fact are put where they belong."""
        stack, cursor = self._stack.take, self._cursor_ns
        for time_ns, code in sorted(zip(times_ns, codes, strict=True), key=itemgetter(0)):
            kind = KINDS.get(code >> 1 & KIND)
            if kind is None:
                continue
            if time_ns > cursor:
                self._spend(time_ns)
                cursor = time_ns
            ends = code & 1 == 1
            if kind in _COUNTED:
                self._count(time_ns, kind, code >> ARG, ends=ends)
            stack(kind, code >> ARG, ends=ends)
        self._forget()

    # ---- time

    def _key(self) -> Key:
        kind, argument = self._stack.top()
        return kind, argument if kind in LOADING else 0, self._stack.section is not None

    def _spend(self, time_ns: int) -> None:
        spent_ns = time_ns - self._cursor_ns
        key = self._key()
        if time_ns >= self._until_ns:
            second = time_ns // 1_000_000_000
            self._until_ns = (second + 1) * 1_000_000_000
            self._seconds.append((second, Counter()))
        self._seconds[-1][1][key] += spent_ns
        if key == (Kind.FORWARD, 0, True):
            self._apart[self._seconds[-1][0]] += spent_ns
        self.series.spend(time_ns, spent_ns, waits=key[0] in LOADING)
        self._cursor_ns = time_ns

    def _forget(self) -> None:
        oldest = self._cursor_ns // 1_000_000_000 - LATELY_S
        while self._seconds and self._seconds[0][0] < oldest:
            self._seconds.popleft()

    def lately(self, now_ns: int) -> dict[PhaseName, float]:
        """Seconds by phase over the last half minute, with what is going on now."""
        sums: Counter[Key] = Counter()
        for second, counted in self._seconds:
            if second >= now_ns // 1_000_000_000 - LATELY_S:
                sums.update(counted)
        sums[self._key()] += max(now_ns - self._cursor_ns, 0)
        trains = self._trains()
        seconds: Counter[PhaseName] = Counter()
        for key, spent_ns in sums.items():
            seconds[_phase(key, trains)] += spent_ns / 1e9  # type: ignore[assignment]  # a Counter of floats
        return dict(seconds)

    def now(self) -> tuple[PhaseName, int]:
        """What the main thread does, and since when."""
        return _phase(self._key(), self._trains()), self._cursor_ns

    # ---- steps

    def _count(self, time_ns: int, kind: Kind, argument: int, *, ends: bool) -> None:
        if ends and kind in _MOVES:
            self.moved_ns = time_ns
        if kind is Kind.ITER and not ends:
            self._open(argument, time_ns)
        elif kind in (Kind.NEXT, Kind.EXHAUSTED):
            self._wait(argument, time_ns, kind, ends=ends)
        elif kind is Kind.BACKWARD and not ends:
            self._credit()
            self._rejoin()
        elif kind is Kind.OPTIMIZER and ends and argument:
            self._optimized(-argument, time_ns)
        elif kind is Kind.SAVE:
            self._disturb(None)

    def _open(self, loader: int, time_ns: int) -> _Pass:
        self._disturb(loader)
        tally = self._tallies.setdefault(loader, _Tally())
        tally.passes.append(_Pass(time_ns))
        return tally.passes[-1]

    def _disturb(self, loader: int | None) -> None:
        """Validation and checkpoints are not part of a step."""
        for other, tally in self._tallies.items():
            tally.disturbed = tally.disturbed or other != loader

    def _wait(self, loader: int, time_ns: int, kind: Kind, *, ends: bool) -> None:
        tally = self._tallies.get(loader)
        one = tally.passes[-1] if tally else self._open(loader, time_ns)
        tally = self._tallies[loader]
        one.last_ns = time_ns
        self._apart.clear()
        if not ends:
            if one.batches > 1 and not tally.disturbed:
                tally.steps.append((time_ns, time_ns - one.asked_ns))
            tally.disturbed = False
            one.asked_ns = time_ns
        elif kind is Kind.EXHAUSTED:
            one.end_ns = one.asked_ns or time_ns
        else:
            self._delivered(tally, one, time_ns)

    def _delivered(self, tally: _Tally, one: _Pass, time_ns: int) -> None:
        if one.batches:
            one.wait_ns += time_ns - one.asked_ns
        else:
            one.first_ns = time_ns
        one.batches += 1
        one.fresh = True
        tally.batches += 1
        if tally.credit:
            self.series.step(time_ns)

    def _credit(self) -> None:
        """A backward is credited to every open pass that has delivered since the backward before."""
        if not self._began:  # what came before is start-up, and not what the loop is like
            self._began = True
            self._seconds.clear()
            self._until_ns = 0
        for loader, tally in self._tallies.items():
            if loader > 0 and tally.passes and tally.passes[-1].fresh and not tally.passes[-1].end_ns:
                tally.credit += 1
                tally.passes[-1].fresh = False

    def _rejoin(self) -> None:
        """What ran without gradients on the batch of this backward was a teacher, or the like: a part of the step."""
        for second, counted in self._seconds if self._apart and self._trains() else ():
            if spent_ns := self._apart[second]:
                counted[Kind.FORWARD, 0, True] -= spent_ns
                counted[Kind.FORWARD, 0, False] += spent_ns
        self._apart.clear()

    def _optimized(self, stand_in: int, time_ns: int) -> None:
        tally = self._tallies.setdefault(stand_in, _Tally())
        if not tally.passes:
            tally.passes.append(_Pass(time_ns, first_ns=time_ns))
        one = tally.passes[-1]
        if one.batches and not tally.disturbed:
            tally.steps.append((time_ns, time_ns - one.asked_ns))
        tally.disturbed = False
        one.asked_ns = one.last_ns = time_ns
        one.batches += 1
        tally.batches += 1
        if self._primary() == stand_in:
            self.series.step(time_ns)

    # ---- what it amounts to

    def _trains(self) -> set[int]:
        """The loaders that train: those whose batches are followed by a backward."""
        loaders = {loader: tally for loader, tally in self._tallies.items() if loader > 0}
        most = max((tally.credit for tally in loaders.values()), default=0)
        return {
            loader
            for loader, tally in loaders.items()
            if most and tally.credit >= TRAINS_SHARE * tally.batches and tally.credit >= RIVAL_SHARE * most
        }

    def _primary(self) -> int | None:
        """The loader that steps are counted by, or the optimizer that steps most rarely."""
        trains = self._trains()
        if trains:
            return max(trains, key=lambda loader: (self._tallies[loader].credit, -loader))
        stand_ins = [loader for loader in self._tallies if loader < 0]
        return min(stand_ins, key=lambda loader: (self._tallies[loader].batches, -loader), default=None)

    @property
    def steps(self) -> int:
        """Steps so far."""
        primary = self._primary()
        return self._tallies[primary].batches if primary is not None else 0

    def step_s(self, now_ns: int) -> float | None:
        """The mean step lately, without validation, checkpoints and an epoch's first batch."""
        primary = self._primary()
        if primary is None:
            return None
        steps = self._tallies[primary].steps
        recent = [length for time_ns, length in steps if time_ns >= now_ns - LATELY_S * 1e9]
        if len(recent) < FEWEST_STEPS:
            recent = [length for _, length in list(steps)[-FEWEST_STEPS:]]
        return sum(recent) / len(recent) / 1e9 if recent else None

    def open_loaders(self) -> Iterator[int]:
        """Loaders in the middle of a pass."""
        for loader, tally in self._tallies.items():
            if loader > 0 and tally.passes and not tally.passes[-1].end_ns:
                yield loader

    def epochs(self, facts: dict[int, LoaderFacts], now_ns: int, most: int) -> tuple[LiveEpoch, ...]:
        """The last passes over the loader that trains."""
        primary = self._primary()
        if primary is None or primary < 0:
            return ()
        passes = [one for one in self._tallies[primary].passes if one.batches]
        length = facts[primary].length if primary in facts else None
        last = passes[-1] if passes else None
        nexts = [later.start_ns for _, later in pairwise(passes)]
        found = [
            _epoch(number, one, following, length, now_ns if one is last and not one.end_ns else one.last_ns)
            for number, (one, following) in enumerate(zip(passes, [*nexts, None], strict=True), 1)
        ]
        return tuple(found[-most:])


def _epoch(number: int, one: _Pass, following_ns: int | None, length: int | None, until_ns: int) -> LiveEpoch:
    end_ns = one.end_ns or until_ns
    return LiveEpoch(
        number=number,
        batches=one.batches,
        length=length,
        first_batch_s=(one.first_ns - one.start_ns) / 1e9,
        seconds=max(end_ns - one.first_ns, 0) / 1e9,
        wait_s=one.wait_ns / 1e9,
        whole_s=(following_ns - one.start_ns) / 1e9 if following_ns else None,
        is_over=bool(one.end_ns or following_ns),
    )


def _phase(key: Key, trains: set[int]) -> PhaseName:
    kind, loader, in_section = key
    if kind in LOADING:
        return "data_wait" if loader in trains or not trains else "validation"
    if kind is Kind.FORWARD and in_section and trains:
        return "validation"
    if kind is Kind.LOSS:
        return "loss"
    return NAMES.get(kind, "other") if kind is not None else "other"
