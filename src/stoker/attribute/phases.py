"""Each segment gets the name of a phase; what no hook covered is told apart by its neighbours and its lines."""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from stoker.attribute.structure import Structure
from stoker.attribute.timeline import LOADING, Event, Segment, segment_at
from stoker.records.attributed import HotLine
from stoker.records.observed import OWN, Kind, PhaseName, Track

HOT_LINES = 20
NAMES: dict[Kind, PhaseName] = {
    Kind.COPY: "transfer",
    Kind.FORWARD: "forward",
    Kind.BACKWARD: "backward",
    Kind.OPTIMIZER: "optimizer",
    Kind.ZERO: "zero_grad",
    Kind.SYNC: "sync",
    Kind.SAVE: "checkpoint",
    Kind.LOG: "logging",
    Kind.GC: "gc",
    Kind.RETIRE: "shutdown",
    Kind.EXIT: "shutdown",
}
MARKS = {Kind.NEXT, Kind.ITER, Kind.FORWARD, Kind.BACKWARD, Kind.OPTIMIZER}
"""Between these a gap is judged; what is smaller stands inside the gap."""
KEEP_IN_VALIDATION = {Kind.SAVE, Kind.LOG, Kind.GC, Kind.EXIT}
IN_STEPS = 0.5
"""In this share of the steps a section without gradients comes before the backward, if it belongs to them."""
FEW_SAMPLES = 3
KEEP_IN_STARTUP = {Kind.SAVE, Kind.EXIT}


def name_segments(
    row: Sequence[Segment], structure: Structure, events: Sequence[Event], track: Track
) -> list[PhaseName]:
    """The phase of each segment."""
    names = [_by_kind(segment, structure) for segment in row]
    _name_gaps(row, names, _Tails(track), has_loader=structure.primary is not None)
    _name_saves(row, names)
    _name_first_batches(row, names, structure)
    _name_validation(row, names, structure, events)
    if structure.starts_ns is not None:
        for i, segment in enumerate(row):
            if (
                segment.start_ns < structure.starts_ns
                and names[i] != "validation"
                and segment.kind not in KEEP_IN_STARTUP
            ):
                names[i] = "startup"
    return names


def _by_kind(segment: Segment, structure: Structure) -> PhaseName:
    if segment.kind is None or segment.kind is Kind.PROBE:
        return "other"
    if segment.kind is Kind.LOSS:
        return "forward"  # until a backward follows
    if segment.kind in (Kind.NEXT, Kind.ITER):
        return (
            "data_wait" if segment.argument in structure.train_loaders or not structure.train_loaders else "validation"
        )
    return NAMES[segment.kind]


class _Tails:
    """Which gaps between two steps are the end of the one before: most of their samples are in lines after it.

    A gap with few samples is what gaps are in general: the sampler comes when the interpreter lets it.
    """

    def __init__(self, track: Track) -> None:
        self._times = track.sample_times_ns
        self._after = [track.lines[number].after_step for number in track.sample_lines]

    def among(self, gaps: Sequence[tuple[int, int]]) -> list[bool]:
        """For each gap, whether it is such an end."""
        found = [self._after[bisect_left(self._times, a) : bisect_left(self._times, b)] for a, b in gaps]
        in_general = _mostly([one for few in found for one in few])
        return [_mostly(one) if len(one) >= FEW_SAMPLES else in_general for one in found]


def _mostly(found: Sequence[bool]) -> bool:
    return 2 * sum(found) > len(found)


def _name_gaps(row: Sequence[Segment], names: list[PhaseName], tails: _Tails, *, has_loader: bool) -> None:
    """Forward's end to backward's start is loss; without a loader, optimizer's end to forward's start is data.

    Unless it is what the script does after a step, by its lines.
    """
    since: Kind | None = None
    waiting: list[int] = []
    fetched: list[list[int]] = []
    for i, segment in enumerate(row):
        if segment.kind is None or segment.kind is Kind.LOSS:
            waiting.append(i)
        elif segment.kind in MARKS:
            name = _gap_name(since, segment.kind, has_loader=has_loader)
            if name == "data_wait" and waiting:
                fetched.append(waiting)
            for j in waiting if name == "loss" else ():
                names[j] = "loss"
            since, waiting = segment.kind, []
    ends = tails.among([(row[gap[0]].start_ns, row[gap[-1]].end_ns) for gap in fetched])
    for j in (j for gap, is_end in zip(fetched, ends, strict=True) if not is_end for j in gap):
        names[j] = "data_wait"


def _gap_name(since: Kind | None, until: Kind, *, has_loader: bool) -> PhaseName | None:
    if since is Kind.FORWARD and until is Kind.BACKWARD:
        return "loss"
    if since is Kind.OPTIMIZER and until is Kind.FORWARD and not has_loader:
        return "data_wait"
    return None


def _name_saves(row: Sequence[Segment], names: list[PhaseName]) -> None:
    """What stands between writing a checkpoint and syncing it, with no step between, is saving too."""
    waiting: list[int] | None = None
    for i, segment in enumerate(row):
        if segment.kind is Kind.SAVE:
            for j in waiting or ():
                names[j] = "checkpoint"
            waiting = []
        elif segment.kind in MARKS:
            waiting = None
        elif waiting is not None and segment.kind is None:
            waiting.append(i)


def _name_first_batches(row: Sequence[Segment], names: list[PhaseName], structure: Structure) -> None:
    spans = [
        (one.start_ns, one.start_ns + round(one.first_batch_s * 1e9), one.loader)
        for one in structure.passes
        if one.is_train
    ]
    for start, end, loader in spans:
        for i in _between(row, start, end):
            if row[i].kind in (Kind.NEXT, Kind.ITER) and row[i].argument == loader:
                names[i] = "first_batch"


def _name_validation(
    row: Sequence[Segment], names: list[PhaseName], structure: Structure, events: Sequence[Event]
) -> None:
    """Passes that do not train, and sections without gradients in which a model ran, if not a part of steps."""
    for start, end in validation_spans(structure, events):
        for i in _between(row, start, end):
            if row[i].kind not in KEEP_IN_VALIDATION:
                names[i] = "validation"
    ran = {segment.section for segment in row if segment.kind is Kind.FORWARD and segment.section}
    of_steps = _of_steps(row, structure)
    collecting = _collecting(row, of_steps)
    for i, segment in enumerate(row):
        if segment.section in of_steps:
            names[i] = "forward" if segment.kind is None else names[i]
        elif segment.section in collecting:
            names[i] = "data_wait" if segment.kind is None and structure.primary is None else names[i]
        elif segment.section in ran and segment.kind not in KEEP_IN_VALIDATION:
            names[i] = "validation"
    _name_what_it_is_waited_for(row, names)


def _name_what_it_is_waited_for(row: Sequence[Segment], names: list[PhaseName]) -> None:
    """A device does its work later: who reads a sum right after a validation waits for all of it."""
    follows = False
    for i, segment in enumerate(row):
        if names[i] == "validation":
            follows = True
        elif segment.kind in MARKS:
            follows = False
        elif follows and segment.kind is Kind.SYNC:
            names[i] = "validation"


def _of_steps(row: Sequence[Segment], structure: Structure) -> set[int]:
    """Sections in which a teacher or a target network ran: on a batch, before its backward, in most of the steps."""
    loops = {segment.section for segment in row if segment.kind in LOADING}  # over batches of their own
    found: set[int] = set()
    since: set[int] = set()
    steps = with_one = 0
    answered = False
    for segment in row:
        if _begins_step(segment, structure):
            since, answered = set(), False
        elif segment.kind is Kind.FORWARD and segment.section and segment.section not in loops:
            since.add(segment.section)
        elif segment.kind is Kind.BACKWARD:
            steps += not answered
            with_one += not answered and bool(since)
            found |= since
            answered = True
    return found if with_one and with_one >= IN_STEPS * steps else set()


def _collecting(row: Sequence[Segment], of_steps: set[int]) -> set[int]:
    """Sections in which the model makes the data that it trains on (a rollout).

    It runs in train mode, on no loader's batches, and has to do so before it can train at all. Who validates begins
    after some training, over a loader, or in eval mode.
    """
    ran = [segment for segment in row if segment.kind is Kind.FORWARD and segment.section is not None]
    others: set[int | None] = {*of_steps}
    others |= {segment.section for segment in row if segment.kind in LOADING}
    others |= {segment.section for segment in ran if segment.argument}
    found = {segment.section: segment for segment in reversed(ran) if segment.section not in others}
    trains_ns = next((segment.start_ns for segment in row if segment.kind is Kind.BACKWARD), 0)
    began_ns = min((segment.start_ns for segment in found.values()), default=trains_ns)
    return {section for section in found if section is not None} if began_ns < trains_ns else set()


def _begins_step(segment: Segment, structure: Structure) -> bool:
    if structure.primary is None:
        return segment.kind is Kind.OPTIMIZER
    return segment.kind is Kind.NEXT and segment.argument == structure.primary


def validation_spans(structure: Structure, events: Sequence[Event]) -> Iterator[tuple[int, int]]:
    """From the start of each pass that does not train to its end, or to where training goes on."""
    if not structure.train_loaders:
        return
    resumes = [event.time_ns for event in events if _trains_again(event, structure)]
    for one in structure.passes:
        if one.is_train or not one.batches:
            continue
        end = one.end_ns
        if not one.is_whole and not one.is_cut:
            end = next((time_ns for time_ns in resumes if time_ns >= end), end)
        yield one.start_ns, end


def _trains_again(event: Event, structure: Structure) -> bool:
    if event.ends:
        return False
    return event.kind is Kind.BACKWARD or (
        event.kind in (Kind.NEXT, Kind.ITER) and event.argument in structure.train_loaders
    )


def _between(row: Sequence[Segment], start_ns: int, end_ns: int) -> Iterator[int]:
    starts = _Starts(row)
    i = segment_at(starts, start_ns)
    while i < len(row) and row[i].start_ns < end_ns:
        if row[i].start_ns >= start_ns:
            yield i
        i += 1


class _Starts(Sequence[int]):
    """The segments' starts, without a copy."""

    def __init__(self, row: Sequence[Segment]) -> None:
        self._row = row

    def __len__(self) -> int:
        return len(self._row)

    def __getitem__(self, i: int) -> int:  # type: ignore[override]
        return self._row[i].start_ns


# ---- lines -----------------------------------------------------------------------------------------------


def sample_phases(row: Sequence[Segment], track: Track) -> list[int]:
    """For each sample the segment it fell into."""
    starts = [segment.start_ns for segment in row]
    return [segment_at(starts, time_ns) for time_ns in track.sample_times_ns]


def hot_lines(
    track: Track, row: Sequence[Segment], names: Sequence[PhaseName], held: Sequence[int]
) -> tuple[HotLine, ...]:
    """The user's lines by the share of wall time below them, each with the phase it was mostly seen in.

    The sampler comes late where the main thread does not let go, so samples only divide the time of the phase they
    fell into; how long that phase took is known from the hooks.
    """
    seconds: Counter[PhaseName] = Counter()
    for segment, name in zip(row, names, strict=True):
        seconds[name] += segment.end_ns - segment.start_ns
    samples = Counter(names[i] for i in held)
    counts: dict[tuple[str, int, str], dict[PhaseName, float]] = defaultdict(lambda: defaultdict(float))
    for number, i in zip(track.sample_lines, held, strict=True):
        line, name = track.lines[number], names[i]
        if line.file != OWN:
            counts[line.file, line.line, line.function][name] += seconds[name] / samples[name]
    wall = seconds.total()
    ranked = sorted(counts.items(), key=lambda item: -sum(item[1].values()))[:HOT_LINES]
    return tuple(
        HotLine(file, line, function, sum(phases.values()) / wall, max(phases, key=phases.__getitem__))
        for (file, line, function), phases in ranked
    )


def unaccounted_s(row: Sequence[Segment], names: Sequence[PhaseName], held: Sequence[int]) -> float:
    """Seconds under `other` that no sample can name: gaps are judged together with all gaps between the same hooks."""
    seconds: dict[tuple[Kind | None, Kind | None], float] = defaultdict(float)
    seen: Counter[tuple[Kind | None, Kind | None]] = Counter()
    for i, segment in enumerate(row):
        if names[i] == "other":
            seconds[_neighbours(row, i)] += segment.seconds
    for i in held:
        if names[i] == "other":
            seen[_neighbours(row, i)] += 1
    return sum(total for between, total in seconds.items() if not seen[between])


def _neighbours(row: Sequence[Segment], i: int) -> tuple[Kind | None, Kind | None]:
    before = row[i - 1].kind if i else None
    after = row[i + 1].kind if i + 1 < len(row) else None
    return before, after
