"""A few real steady steps, lane by lane: what the main thread, the workers and the device did at the same time."""

import dataclasses
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from stoker.attribute import phases
from stoker.attribute.batches import Made, taken_ns
from stoker.attribute.structure import Structure
from stoker.attribute.timeline import Segment, decode_events, segments
from stoker.records.attributed import Attribution, Excerpt, Join, Span, Step
from stoker.records.observed import DEVICE_WORK, Kind, PhaseName, Track

STEPS = 20
MOST_SPANS = 3000
"""A step of very many small pieces is shown with fewer steps around it."""
MAIN, DEVICE = "main thread", "device"


def excerpt(
    track: Track, named: Attribution, cuts_ns: Sequence[int], made: Sequence[Made], joined: Mapping[int, Made]
) -> Excerpt | None:
    """About twenty steps that took as long as steps took in the mean.

    All times are of the clock without experiments; `cuts_ns` is where these were.
    """
    numbers = _choose(named, cuts_ns)
    if not numbers:
        return None
    for count in (len(numbers), 8, 3, 1):
        found = _draw(track, named, numbers[:count], made, joined)
        if len(found.spans) <= MOST_SPANS:
            break
    return found


def _choose(named: Attribution, cuts_ns: Sequence[int]) -> list[int]:
    """The stretch of steady steps whose mean is nearest to the mean of all."""
    if named.steady is None:
        return []
    stretches = [row for row in _stretches(named, cuts_ns) if row]
    wanted = min(STEPS, max((len(row) for row in stretches), default=0))
    best: list[int] = []
    least = float("inf")
    for row in stretches:
        for i in range(len(row) - wanted + 1):
            seconds = (named.steps[row[i + wanted - 1]].end_ns - named.steps[row[i]].start_ns) / 1e9
            far = abs(seconds / wanted - named.steady.mean_step_s)
            if far < least:
                best, least = row[i : i + wanted], far
    return best


def _stretches(named: Attribution, cuts_ns: Sequence[int]) -> Iterator[list[int]]:
    """Steady steps that follow each other within an epoch, without an experiment between."""
    assert named.steady is not None
    cuts = sorted(cuts_ns)

    def key(pair: tuple[int, int]) -> tuple[int, int, int]:
        place, number = pair
        step = named.steps[number]
        return number - place, step.epoch, bisect_right(cuts, step.start_ns)

    for _, row in groupby(enumerate(named.steady.steps), key):
        numbers = [number for _, number in row]
        last = named.steps[numbers[-1]]
        yield numbers[:-1] if bisect_left(cuts, last.end_ns) > bisect_right(cuts, last.start_ns) else numbers


def _draw(
    track: Track, named: Attribution, numbers: Sequence[int], made: Sequence[Made], joined: Mapping[int, Made]
) -> Excerpt:
    steps = [named.steps[number] for number in numbers]
    start_ns, end_ns = steps[0].start_ns, steps[-1].end_ns
    drawn = _Drawing(start_ns, end_ns, steps, numbers[0])
    spans = [*drawn.main(track, named), *drawn.workers(made), *drawn.device(track)]
    joins = tuple(drawn.joins(joined))
    lanes = sorted({span.lane for span in spans}, key=_rank)
    return Excerpt(
        first_step=numbers[0],
        steps=len(numbers),
        start_s=(start_ns - track.start_ns) / 1e9,
        seconds=(end_ns - start_ns) / 1e9,
        lanes=tuple(lanes),
        spans=tuple(spans),
        joins=joins,
    )


def _rank(lane: str) -> tuple[int, int, str]:
    """Workers above, then the main thread they feed, then the device it feeds."""
    place = {MAIN: 1, DEVICE: 2}.get(lane, 0)
    number = lane.rpartition(" ")[2]
    return place, int(number) if number.isdecimal() else 0, lane


def lane_of(worker: int | None) -> str:
    """The lane of one worker, or of the main thread's own making of batches."""
    return "making batches" if worker is None else f"worker {worker}"


class _Drawing:
    """One stretch of time, from which each lane takes its spans."""

    def __init__(self, start_ns: int, end_ns: int, steps: Sequence[Step], first: int) -> None:
        self._start_ns, self._end_ns = start_ns, end_ns
        self._steps, self._first = steps, first
        self._starts = [step.start_ns for step in steps]

    def _span(self, lane: str, name: str, start_ns: int, end_ns: int) -> Iterator[Span]:
        start, end = max(start_ns, self._start_ns), min(end_ns, self._end_ns)
        if end > start:
            step = self._first + max(bisect_right(self._starts, start) - 1, 0)
            yield Span(lane, name, (start - self._start_ns) / 1e9, (end - self._start_ns) / 1e9, step)

    def main(self, track: Track, named: Attribution) -> Iterator[Span]:
        """The main thread's phases, neighbours of one name put together."""
        row, names = _named_segments(track, named, self._start_ns, self._end_ns)
        for _, pairs in groupby(zip(row, names, strict=True), lambda pair: pair[1]):
            together = list(pairs)
            yield from self._span(MAIN, together[0][1], together[0][0].start_ns, together[-1][0].end_ns)

    def workers(self, made: Sequence[Made]) -> Iterator[Span]:
        """Each batch: fetched, collated, sent."""
        for one in made:
            if one.begin_ns < self._end_ns and one.ready_ns > self._start_ns:
                lane = lane_of(one.worker)
                fetched_ns = one.end_ns - round(one.batch.collate_s * 1e9)
                yield from self._span(lane, "fetch", one.begin_ns, fetched_ns)
                yield from self._span(lane, "collate", fetched_ns, one.end_ns)
                yield from self._span(lane, "send", one.end_ns, one.ready_ns)

    def device(self, track: Track) -> Iterator[Span]:
        """The device's own timeline, where it has one."""
        first = bisect_left(track.device_ends_ns, self._start_ns)
        last = bisect_right(track.device_starts_ns, self._end_ns)
        for i in range(first, last):
            work = DEVICE_WORK[track.device_work[i]]
            yield from self._span(DEVICE, work, track.device_starts_ns[i], track.device_ends_ns[i])

    def joins(self, joined: Mapping[int, Made]) -> Iterator[Join]:
        """From where a batch was ready to where it was taken."""
        for number, step in enumerate(self._steps, self._first):
            one = joined.get(number)
            if one is not None and one.worker is not None and self._start_ns <= one.end_ns <= taken_ns(step):
                made_s, taken_s = ((time_ns - self._start_ns) / 1e9 for time_ns in (one.end_ns, taken_ns(step)))
                yield Join(lane_of(one.worker), made_s, taken_s, step.parts.get("data_wait", 0.0), number)


def _named_segments(
    track: Track, named: Attribution, start_ns: int, end_ns: int
) -> tuple[list[Segment], list[PhaseName]]:
    """The segments of a stretch; steps begin where nothing is open, so that no earlier event is needed."""
    pairs = zip(track.times_ns, track.codes, strict=True)
    inside = [(time_ns, code) for time_ns, code in pairs if start_ns <= time_ns <= end_ns]
    part = dataclasses.replace(
        track,
        start_ns=start_ns,
        end_ns=end_ns,
        times_ns=tuple(time_ns for time_ns, _ in inside),
        codes=tuple(code for _, code in inside),
    )
    events = decode_events(part)
    passes = tuple(one for one in named.passes if one.start_ns < end_ns and one.end_ns > start_ns)
    trains = frozenset(one.loader for one in named.passes if one.is_train)
    primary = next(iter(sorted(trains)), None)
    structure = Structure(passes, (), trains, primary, None, 0)
    row = [segment for segment in segments(part, events) if segment.kind is not Kind.PROBE]
    return row, phases.name_segments(row, structure, events, track)
