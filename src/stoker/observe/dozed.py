"""What hooks that dozed would have seen, filled in: a step that was timed as a whole is laid out like one that was not.

Waits for data, copies, syncs and sections were seen in these steps too. They are the anchors: between two of them the
other events stand as in a step that was seen, stretched or squeezed to the time there was. It is one with the same
anchors, by its place among those that repeat: the step that waits for the loss every so often is like others that did,
and not like its neighbours. Of these it is the one that took most nearly as long from one anchor to the next.
"""

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from operator import itemgetter

from stoker.observe.doze import RARE, STILL
from stoker.records.observed import ARG, KIND, Kind

LONGEST = 2.0
"""What took more than this many times the most alike was disturbed, nobody knows where: nothing is stretched that far,
and what is left stays without a name, for the sampler's lines."""
MOST_PATTERNS = 1024
"""Steps of one kind that are kept as patterns, the newest …"""
MOST_AWAKE = 4096
"""… and events among which the last of them are looked for."""

Seen = tuple[int, int]
"""A time and a code."""
Order = tuple[int, ...]
"""The codes of a step's events, without the rare ones."""


def fill(times: Sequence[int], codes: Sequence[int]) -> tuple[list[int], list[int]]:
    """The same events without the marks of dozing, and with those of the steps between."""
    filler = Filler()
    filled = list(chain(filler.take(zip(times, codes, strict=True)), filler.rest()))
    return [time_ns for time_ns, _ in filled], [code for _, code in filled]


class Filler:
    """Takes events as they come, and holds those of a doze back until it is over."""

    def __init__(self) -> None:
        self._awake: deque[Seen] = deque(maxlen=MOST_AWAKE)
        self._doze: Doze | None = None
        self._patterns = Patterns()

    def take(self, events: Iterable[Seen]) -> Iterator[Seen]:
        """New events, and those that can be filled in by now."""
        for event in events:
            doze = self._doze
            if event[1] >> 1 & KIND == Kind.DOZE:
                if doze is not None and event[1] & 1:
                    doze.over = event
                elif not event[1] & 1:
                    yield from self.rest()
                    self._doze = Doze(event)
            elif doze is not None and doze.over is None:
                doze.events.append(event)
            else:
                yield from self.rest(event)
                self._awake.append(event)
                yield event

    def rest(self, after: Seen | None = None) -> Iterator[Seen]:
        """What was held back, once the doze is over or nothing more comes."""
        doze, self._doze = self._doze, None
        if doze is not None and doze.events:
            orders = self._patterns.add([*self._awake, (doze.mark[0], doze.begin)], doze.begin, doze.period)
            yield from doze.filled(self._patterns, orders, after)
            self._awake.clear()


@dataclass(frozen=True)
class Step:
    """A step's anchors, and what stands between each of them and the next."""

    anchors: tuple[Seen, ...]
    still: tuple[tuple[Seen, ...], ...]
    rare: tuple[tuple[Seen, ...], ...]

    @staticmethod
    def of(events: Sequence[Seen]) -> "Step":
        """A step's events in this form; the first is its own, the last the next one's: both are anchors."""
        anchors: list[Seen] = []
        still: list[list[Seen]] = []
        rare: list[list[Seen]] = []
        for event in events:
            kind = event[1] >> 1 & KIND
            if kind in STILL:
                still[-1].append(event)
            elif kind in RARE:
                rare[-1].append(event)
            else:
                anchors.append(event)
                still.append([])
                rare.append([])
        return Step(tuple(anchors), tuple(map(tuple, still)), tuple(map(tuple, rare)))

    @cached_property
    def order(self) -> Order:
        """What steps that can stand for one another have in common."""
        stretches = zip(self.anchors, self.still, strict=True)
        return tuple(code for anchor, still in stretches for _, code in (anchor, *still))

    def length_ns(self, at: int) -> int:
        """How long it took from one anchor to the next."""
        return self.anchors[at + 1][0] - self.anchors[at][0]


def _steps(seen: Iterable[Seen], begin: int) -> list[Step]:
    events = sorted(seen, key=itemgetter(0))  # a copy or a wait is written down when it is over, those in it before it
    starts = [i for i, (_, code) in enumerate(events) if code == begin]
    return [Step.of(events[a : b + 1]) for a, b in pairwise(starts)]


class Patterns:
    """The newest steps that were seen inside."""

    def __init__(self) -> None:
        self._known: dict[Order, deque[Step]] = defaultdict(lambda: deque(maxlen=MOST_PATTERNS))
        self._by_length: dict[tuple[Order, int], list[tuple[int, Step]]] = {}

    def add(self, awake: list[Seen], begin: int, period: int) -> list[list[Order]]:
        """The steps before a doze. Returns the orders that each of the next ones may have, as they repeat.

        Those of the newest steps come first. Where all are alike, those that were seen before other dozes will do too.
        """
        steps = _steps(awake, begin)
        for step in steps:
            self._known[step.order].append(step)
        self._by_length.clear()
        orders = [dict.fromkeys(step.order for step in steps[-place::-period]) for place in range(period, 0, -1)]
        if period == 1:
            orders[0] |= dict.fromkeys(self._known)
        return [list(one) for one in orders]

    def fitting(self, orders: Iterable[Order], anchors: Sequence[Seen], *, is_whole: bool) -> Order | None:
        """The first order with these anchors; with these and others after them, if they are not a whole step's."""
        codes = [code for _, code in anchors]
        for order in orders:
            own = [code for _, code in self._known[order][0].anchors]
            if (len(own) == len(codes) if is_whole else len(own) > len(codes)) and own[: len(codes)] == codes:
                return order
        return None

    def nearest(self, order: Order, at: int, length_ns: int) -> Step:
        """The one that took most nearly as long from this anchor to the next, if possible with nothing rare there."""
        steps = self._by_length.get((order, at))
        if steps is None:
            sound = [step for step in self._known[order] if not step.rare[at]] or self._known[order]
            steps = sorted(((step.length_ns(at), step) for step in sound), key=itemgetter(0))
            self._by_length[order, at] = steps
        place = bisect_left(steps, length_ns, key=itemgetter(0))
        return min(steps[max(place - 1, 0) : place + 1], key=lambda found: abs(found[0] - length_ns))[1]


class Doze:
    """Steps that were timed as a whole."""

    def __init__(self, mark: Seen) -> None:
        self.mark = mark
        self.period = max(mark[1] >> ARG, 1)
        self.events: list[Seen] = []
        self.over: Seen | None = None

    @property
    def begin(self) -> int:
        """The code that each step begins with."""
        return self.events[0][1]

    def filled(self, patterns: Patterns, orders: list[list[Order]], after: Seen | None) -> Iterator[Seen]:
        """All its events; a last step that nothing ended stays as it is. `after` is what was seen next."""
        begin, over = self.begin, self.over
        steps = _steps([*self.events, (over[0], begin)] if over else self.events, begin)
        for number, step in enumerate(steps, 1):
            is_whole = number < len(steps) or over is None or (after is not None and after[1] == begin)
            yield from _laid_out(step, orders[(number - 1) % len(orders)], patterns, is_whole=is_whole)
        if over is None:
            yield from self.events[max(i for i, (_, code) in enumerate(self.events) if code == begin) :]


def _laid_out(step: Step, orders: Iterable[Order], patterns: Patterns, *, is_whole: bool) -> list[Seen]:
    """A step's events, all but the one that begins the next, among those of the first order with the same anchors.

    A step in the middle of which the hooks woke has only the first of them, and after the last of these what others
    have ended by then, at their own pace.
    """
    count = len(step.anchors) - (not is_whole)
    order = patterns.fitting(orders, step.anchors[:count], is_whole=is_whole)
    laid: list[Seen] = []
    for at, ((start, code), (end, _)) in enumerate(pairwise(step.anchors)):
        free = Free(start, end, step.rare[at])
        among: list[Seen] = []
        if order is not None:
            pattern = patterns.nearest(order, at, free.length_ns)
            scale = free.length_ns / max(pattern.length_ns(at), 1)
            scale = 1.0 if scale > LONGEST or at >= count - 1 else scale
            begin_ns = pattern.anchors[at][0]
            moved = [(int((time_ns - begin_ns) * scale), still) for time_ns, still in pattern.still[at]]
            among = [(free.at(time_ns), still) for time_ns, still in moved if time_ns <= free.length_ns]
        laid.append((start, code))
        laid += sorted([*step.rare[at], *among], key=lambda event: event[0])
    return laid if is_whole else _closed(laid)


def _closed(events: list[Seen]) -> list[Seen]:
    """Without what was begun and not ended."""
    begun: dict[int, int] = {}
    for i, (_, code) in enumerate(events):
        if code >> 1 & KIND in STILL:
            if code & 1:
                begun.pop(code & ~1, None)
            else:
                begun[code] = i
    return [event for i, event in enumerate(events) if i not in begun.values()]


class Free:
    """The time between two anchors, without that of rare events in it."""

    def __init__(self, start_ns: int, end_ns: int, rare: Sequence[Seen]) -> None:
        self._start_ns = start_ns
        self._gaps: list[Seen] = []
        depth = opened = 0
        for time_ns, code in rare:
            if not code & 1:
                opened = time_ns if not depth else opened
                depth += 1
            elif depth:
                depth -= 1
                if not depth:
                    self._gaps.append((opened, time_ns))
        self.length_ns = end_ns - start_ns - sum(end - start for start, end in self._gaps)

    def at(self, free_ns: int) -> int:
        """A moment of it by the clock."""
        time_ns = self._start_ns + free_ns
        for start, end in self._gaps:
            if time_ns >= start:
                time_ns += end - start
        return time_ns
