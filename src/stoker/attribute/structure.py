"""What is a step, an epoch, a training loader? Found from what happened, without knowing the loop."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from stoker.attribute.timeline import Event
from stoker.records.attributed import Pass
from stoker.records.observed import Cut, Kind, LoaderFacts

TRAINS_SHARE = 0.5
"""A loader trains if at least this share of its batches was followed by a backward …"""
RIVAL_SHARE = 0.3
"""… and they are at least this share of the busiest loader's."""
KEPT_ON = 10
"""Steps of an optimizer after the last batch of a loader that are training, not what comes after it."""
LEFT = 2
"""Passes that the script has left before their end, from which on that is how long they are."""


@dataclass(slots=True)
class _Open:
    """A pass while its events are read."""

    loader: int
    start_ns: int
    waits: list[tuple[int, int]] = field(default_factory=list)
    end_ns: int = 0
    last_ns: int = 0
    backwards: int = 0
    fresh: int = 0
    """Batches delivered that no backward has answered yet; some loops draw several and then train on each …"""
    answered: bool = False
    """… but what is left when another loader has its turn was not trained on."""
    retire_ns: int = 0
    trained_ns: int = 0


@dataclass(frozen=True, slots=True)
class Structure:
    """The loop, as far as it could be seen. `bounds` are the steps' starts and ends, with the number of their pass."""

    passes: tuple[Pass, ...]
    bounds: tuple[tuple[int, int, int], ...]
    train_loaders: frozenset[int]
    primary: int | None
    starts_ns: int | None
    optimizer_steps: int


def find(events: Sequence[Event], loaders: Sequence[LoaderFacts], cuts: Sequence[Cut], end_ns: int) -> Structure:
    """The structure behind a track's events."""
    raw = _passes(events, end_ns)
    trains, primary = _roles(raw)
    facts = {one.loader: one for one in loaders}
    cut_at = Counter((cut.loader, cut.batches) for cut in cuts)
    passes = _with_lengths([_closed(one, trains, facts.get(one.loader), cut_at, end_ns) for one in raw])
    steps = [event for event in events if event.kind is Kind.OPTIMIZER and event.argument and event.ends]
    if primary is not None:
        bounds = _by_loader(raw, primary)
        bounds += _kept_on(steps, bounds)
        starts = next((one.start_ns for one in raw if one.loader == primary), None)
    else:
        bounds, starts = _by_optimizer(events, steps)
    return Structure(passes, tuple(bounds), frozenset(trains), primary, starts, len(steps))


# ---- passes ----------------------------------------------------------------------------------------------


def _passes(events: Sequence[Event], end_ns: int) -> list[_Open]:
    reader = _Reader()
    for event in events:
        reader.take(event)
    for one in reader.found:
        one.last_ns = one.last_ns or min(one.start_ns, end_ns)
    return reader.found


class _Reader:
    """Reads events in order and keeps, for each loader, the pass that is open."""

    def __init__(self) -> None:
        self.found: list[_Open] = []
        self._current: dict[int, _Open] = {}
        self._asked_ns = self._retiring_ns = 0

    def take(self, event: Event) -> None:
        if event.kind is Kind.ITER and not event.ends:
            self._open(event)
        elif event.kind in (Kind.NEXT, Kind.EXHAUSTED):
            self._waited(event)
        elif event.kind in (Kind.BACKWARD, Kind.OPTIMIZER):
            self._trained(event)
        elif event.kind is Kind.RETIRE:
            self._retired(event)

    def _open(self, event: Event) -> None:
        self._current[event.argument] = _Open(event.argument, event.time_ns)
        self.found.append(self._current[event.argument])

    def _waited(self, event: Event) -> None:
        if event.argument not in self._current:
            if event.ends:
                return
            self._open(event)  # its start was another thread's
        one = self._current[event.argument]
        one.last_ns = event.time_ns
        if not event.ends:
            self._asked_ns = event.time_ns
        elif event.kind is Kind.EXHAUSTED:
            one.end_ns, one.fresh = self._asked_ns or event.time_ns, 0
        else:
            one.waits.append((self._asked_ns or event.time_ns, event.time_ns))
            self._delivered(one)

    def _delivered(self, one: _Open) -> None:
        for other in self._current.values():
            if other is not one and other.answered:
                other.fresh = 0
        one.fresh += 1
        one.answered = False

    def _trained(self, event: Event) -> None:
        """A backward is credited to every open pass with a batch that no backward has answered."""
        for one in self._current.values():
            if one.end_ns:
                continue
            if event.ends:
                one.trained_ns = event.time_ns
            elif one.fresh and event.kind is Kind.BACKWARD:
                one.backwards += 1
                one.fresh -= 1
                one.answered = True

    def _retired(self, event: Event) -> None:
        if event.ends and self.found:
            max(self.found, key=lambda one: one.last_ns).retire_ns += event.time_ns - self._retiring_ns
        self._retiring_ns = event.time_ns


def _roles(passes: Sequence[_Open]) -> tuple[set[int], int | None]:
    batches: Counter[int] = Counter()
    credit: Counter[int] = Counter()
    for one in passes:
        batches[one.loader] += len(one.waits)
        credit[one.loader] += one.backwards
    most = max(credit.values(), default=0)
    if not most:
        return set(), None
    trains = {
        loader
        for loader, count in credit.items()
        if count >= TRAINS_SHARE * batches[loader] and count >= RIVAL_SHARE * most
    }
    first = {loader: min(one.start_ns for one in passes if one.loader == loader) for loader in trains}
    primary = min(trains, key=lambda loader: (-credit[loader], first[loader])) if trains else None
    return trains, primary


def _closed(
    one: _Open,
    trains: set[int],
    facts: LoaderFacts | None,
    cut_at: Counter[tuple[int, int]],
    end_ns: int,
) -> Pass:
    was_cut = cut_at[one.loader, len(one.waits)] > 0 and one.end_ns > 0
    first = one.waits[0][1] if one.waits else one.last_ns
    return Pass(
        loader=one.loader,
        is_train=one.loader in trains,
        start_ns=one.start_ns,
        end_ns=min(one.end_ns or one.last_ns, end_ns),
        first_batch_s=(first - one.start_ns) / 1e9,
        wait_s=sum(end - start for start, end in one.waits[1:]) / 1e9,
        batch_s=_batch_s(one, ahead(facts)),
        batches=len(one.waits),
        length=facts.length if facts else None,
        is_whole=one.end_ns > 0 and not was_cut,
        is_cut=was_cut,
        retire_s=one.retire_ns / 1e9,
    )


def _with_lengths(passes: Sequence[Pass]) -> tuple[Pass, ...]:
    """How long passes really are: a stream shows it by its end, and a script that leaves every pass early by leaving.

    The longest one: batches that came inside an experiment are not among a pass's own.
    """
    lengths = {loader: _shown(loader, passes) for loader in {one.loader for one in passes}}
    return tuple(replace(one, length=lengths[one.loader] or one.length) for one in passes)


def _shown(loader: int, passes: Sequence[Pass]) -> int | None:
    own = [one for one in passes if one.loader == loader and one.batches]
    whole = [one.batches for one in own if one.is_whole and one.length is None]
    left = [one.batches for one in own[:-1]]  # the last may be under way
    if len(left) >= LEFT and not any(one.is_whole or one.is_cut for one in own):
        return max(left)
    return max(whole, default=None)


def ahead(facts: LoaderFacts | None) -> int:
    """Batches that workers can have ready before the first one is asked for."""
    return facts.num_workers * (facts.prefetch_factor or 1) if facts else 0


def _batch_s(one: _Open, head: int) -> float | None:
    count = len(one.waits)
    first = head + 1 if count > head + 2 else 1
    if count <= first:
        return None
    end = one.end_ns or one.waits[-1][0]
    batches = count - first if one.end_ns else count - first - 1
    return (end - one.waits[first][0]) / 1e9 / batches if batches else None


# ---- steps -----------------------------------------------------------------------------------------------


def _by_loader(passes: Sequence[_Open], primary: int) -> list[tuple[int, int, int]]:
    """From one request for a batch to the next; the last step of a pass ends where the pass does."""
    bounds = []
    epoch = 0
    for one in passes:
        if one.loader != primary or not one.waits:
            continue
        starts = [start for start, _ in one.waits]
        # The last step of a pass that was left or broken off ends with the last work of training in it.
        ends = [*starts[1:], one.end_ns or one.trained_ns]
        bounds += [(start, end, epoch) for start, end in zip(starts, ends, strict=True) if end > start]
        epoch += 1
    return bounds


def _kept_on(steps: Sequence[Event], bounds: Sequence[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Steps on batches that the script has kept: `itertools.cycle` asks its loader for one pass only."""
    if not bounds:
        return []
    _, last, epoch = bounds[-1]
    slowest = _slowest_optimizer(steps)
    marks = [event.time_ns for event in steps if event.argument == slowest and event.time_ns > last]
    return [(a, b, epoch) for a, b in pairwise([last, *marks])] if len(marks) >= KEPT_ON else []


def _by_optimizer(events: Sequence[Event], steps: Sequence[Event]) -> tuple[list[tuple[int, int, int]], int | None]:
    """Without a loader: from one step of the optimizer to the next; without one, from backward to backward."""
    marks = [event.time_ns for event in steps if event.argument == _slowest_optimizer(steps)]
    marks = marks or _outer_backwards(events)
    if not marks:
        return [], None
    forwards = [event.time_ns for event in events if event.kind is Kind.FORWARD and not event.ends]
    start = next((time_ns for time_ns in forwards if time_ns < marks[0]), marks[0])
    edges = [start, *marks]
    return [(a, b, 0) for a, b in pairwise(edges) if b > a], start


def _slowest_optimizer(steps: Sequence[Event]) -> int | None:
    """Of several optimizers the one that steps most rarely closes a pass of the loop."""
    counts = Counter(event.argument for event in steps)
    return min(counts, key=lambda number: (counts[number], number)) if counts else None


def _outer_backwards(events: Sequence[Event]) -> list[int]:
    depth, marks = 0, []
    for event in events:
        if event.kind is Kind.BACKWARD:
            depth += -1 if event.ends else 1
            if depth == 0:
                marks.append(event.time_ns)
    return marks
