"""Events become a gapless row of segments: each moment belongs to the innermost span that was open."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stoker.records.observed import ARG, KIND, Kind, Track

KINDS = {int(kind): kind for kind in Kind if kind is not Kind.DOZE}
"""What a code stands for. Dozing is none of the script's, and filled in when the events were read."""
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
    found = []
    for time_ns, code in zip(track.times_ns, track.codes, strict=True):
        kind = KINDS.get(code >> 1 & KIND)
        if kind is not None:
            clipped = min(max(time_ns, track.start_ns), track.end_ns)
            found.append(Event(clipped, kind, bool(code & 1), code >> ARG))
    found.sort(key=lambda event: event.time_ns)
    return found


Named = tuple[Kind | None, int]
"""What a stretch of time belongs to: a kind, or None where no hook was open, and its argument."""
NOTHING: Named = (None, 0)


class Stack:
    """The spans that are open. An end closes what it left open below it; an end without a begin is nothing."""

    def __init__(self) -> None:
        # Kind, what names the time while it is innermost, and the outermost loader around it.
        self._open: list[tuple[Kind, Named, Named | None]] = []
        self._sections = 0
        self.section: int | None = None

    def take(self, kind: Kind, argument: int, *, ends: bool) -> None:
        """The next event, in order of time."""
        if kind is Kind.EXIT:
            self._open = [(Kind.EXIT, (Kind.EXIT, 0), None)]
            self.section = None
        elif ends:
            self._close(Kind.NEXT if kind is Kind.EXHAUSTED else kind)
        elif kind is not Kind.EXHAUSTED:  # it only ever ends a NEXT
            self._begin(kind, argument)

    def _begin(self, kind: Kind, argument: int) -> None:
        own = (kind, argument)
        _, top, loading = self._open[-1] if self._open else (None, NOTHING, None)
        if kind is Kind.NO_GRAD:  # a section names nothing by itself
            if not self._open:
                self._sections += 1
                self.section = self._sections
            self._open.append((kind, top, loading))
        elif loading is not None:
            self._open.append((kind, own if kind in OWN_INSIDE_LOADING else loading, loading))
        else:
            self._open.append((kind, own, own if kind in LOADING else None))

    def _close(self, kind: Kind) -> None:
        for i in range(len(self._open) - 1, -1, -1):
            if self._open[i][0] is kind:
                del self._open[i:]
                break
        if not self._open:
            self.section = None

    def top(self) -> Named:
        """The innermost span that gives its time a name."""
        return self._open[-1][1] if self._open else NOTHING


def segments(track: Track, events: Sequence[Event]) -> list[Segment]:
    """All of the track's time, in order, nothing twice and nothing left out."""
    return list(_segments(track, events))


def _segments(track: Track, events: Sequence[Event]) -> Iterator[Segment]:
    stack = Stack()
    cursor = track.start_ns
    for event in events:
        if event.time_ns > cursor:
            kind, argument = stack.top()
            yield Segment(cursor, event.time_ns, kind, argument, stack.section)
            cursor = event.time_ns
        stack.take(event.kind, event.argument, ends=event.ends)
    if track.end_ns > cursor:
        kind, argument = stack.top()
        yield Segment(cursor, track.end_ns, kind, argument, stack.section)


def segment_at(starts: Sequence[int], time_ns: int) -> int:
    """The index of the segment that holds this moment, given all segments' starts."""
    return max(bisect_right(starts, time_ns) - 1, 0)
