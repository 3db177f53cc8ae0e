"""Events become a gapless row of segments: each moment belongs to the innermost span that was open."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stoker.records import ARG, Kind, Track

_KIND = (1 << ARG - 1) - 1
LOADING = {Kind.NEXT, Kind.ITER}
OWN_INSIDE_LOADING = {Kind.GC, Kind.LOG, Kind.SYNC, Kind.RETIRE, Kind.SAVE, Kind.PROBE, Kind.NEXT}
"""What keeps its name inside a loader; a model that a dataset calls is a way of loading."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event, decoded."""

    time_ns: int
    kind: Kind
    ends: bool
    argument: int


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of time that belongs to one span. `kind` is None where no hook was open."""

    start_ns: int
    end_ns: int
    kind: Kind | None
    argument: int
    section: int | None
    """The outermost section without gradients that holds it, by its number."""

    @property
    def seconds(self) -> float:
        """How long it lasted."""
        return (self.end_ns - self.start_ns) / 1e9


def decode_events(track: Track) -> list[Event]:
    """The events of a track in order of time, clipped to its start and end."""
    known = {int(kind): kind for kind in Kind}
    found = []
    for time_ns, code in zip(track.times_ns, track.codes, strict=True):
        kind = known.get(code >> 1 & _KIND)
        if kind is not None:
            clipped = min(max(time_ns, track.start_ns), track.end_ns)
            found.append(Event(clipped, kind, bool(code & 1), code >> ARG))
    found.sort(key=lambda event: event.time_ns)
    return found


class _Stack:
    """The spans that are open. An end closes what it left open below it; an end without a begin is nothing."""

    def __init__(self) -> None:
        self.open: list[tuple[Kind, int]] = []
        self.sections = 0
        self.section: int | None = None

    def take(self, event: Event) -> None:
        if event.kind is Kind.EXIT:
            self.open = [(Kind.EXIT, 0)]
            self.section = None
        elif event.kind is Kind.EXHAUSTED and not event.ends:
            pass  # it only ever ends a NEXT
        elif not event.ends:
            if event.kind is Kind.NO_GRAD and not self.open:
                self.sections += 1
                self.section = self.sections
            self.open.append((event.kind, event.argument))
        else:
            self._close(Kind.NEXT if event.kind is Kind.EXHAUSTED else event.kind)

    def _close(self, kind: Kind) -> None:
        for i in range(len(self.open) - 1, -1, -1):
            if self.open[i][0] is kind:
                del self.open[i:]
                break
        if not self.open:
            self.section = None

    def top(self) -> tuple[Kind | None, int]:
        """The innermost span that gives its time a name."""
        kinds = [(kind, argument) for kind, argument in self.open if kind is not Kind.NO_GRAD]
        if not kinds:
            return None, 0
        loading = next((i for i, (kind, _) in enumerate(kinds) if kind in LOADING), None)
        if loading is not None and kinds[-1][0] not in OWN_INSIDE_LOADING:
            return kinds[loading]
        return kinds[-1]


def segments(track: Track, events: Sequence[Event]) -> list[Segment]:
    """All of the track's time, in order, nothing twice and nothing left out."""
    return list(_segments(track, events))


def _segments(track: Track, events: Sequence[Event]) -> Iterator[Segment]:
    stack = _Stack()
    cursor = track.start_ns
    for event in events:
        if event.time_ns > cursor:
            kind, argument = stack.top()
            yield Segment(cursor, event.time_ns, kind, argument, stack.section)
            cursor = event.time_ns
        stack.take(event)
    if track.end_ns > cursor:
        kind, argument = stack.top()
        yield Segment(cursor, track.end_ns, kind, argument, stack.section)


def segment_at(starts: Sequence[int], time_ns: int) -> int:
    """The index of the segment that holds this moment, given all segments' starts."""
    return max(bisect_right(starts, time_ns) - 1, 0)
