"""Records become shares of wall that sum to one. Pure: no torch, no clock, no files.

`attribute` reads as its stages: events → segments → structure of the loop → phases → steps → steady state.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import get_args

from stoker.attribute import phases, steady
from stoker.attribute.excise import breaks, excise
from stoker.attribute.structure import Structure, ahead, find
from stoker.attribute.timeline import Event, Segment, decode_events, segments
from stoker.records.attributed import Attribution, LoaderWait, Phase, Step
from stoker.records.observed import Kind, LoaderFacts, PhaseName, Track

APART = {"validation", "checkpoint", "first_batch", "startup", "shutdown"}
"""What can happen inside a step and is forecast by itself."""


def attribute(track: Track) -> Attribution:
    """All of a track's time, named."""
    breaks_ns = breaks(track)
    track = excise(track)
    events = decode_events(track)
    structure = find(events, track.loaders, track.cuts, track.end_ns)
    row = [segment for segment in segments(track, events) if segment.kind is not Kind.PROBE]
    names = phases.name_segments(row, structure, events, track)
    held = phases.sample_phases(row, track) if row else []
    wall_s = math.fsum(segment.seconds for segment in row)
    steps = _steps(row, names, structure)
    return Attribution(
        wall_s=wall_s,
        startup_s=_total(row, names, "startup"),
        phases=sum_phases(row, names, wall_s),
        unaccounted_share=phases.unaccounted_s(row, names, held) / wall_s if wall_s else 0.0,
        hot_lines=phases.hot_lines(track, row, names, held) if row else (),
        steps=steps,
        passes=structure.passes,
        steady=steady.find(steps, *_head(track.loaders, structure), breaks_ns),
        loaders=_waits(track.loaders, structure),
        between_s=_between(row, names, structure),
        checkpoint_s=_saves(events),
        optimizer_steps=structure.optimizer_steps,
        syncs=len(_spans(events, Kind.SYNC)),
        events=len(events),
    )


def sum_phases(row: Sequence[Segment], names: Sequence[PhaseName], wall_s: float) -> tuple[Phase, ...]:
    """Every phase with its seconds and its share; the shares sum to one."""
    seconds: dict[PhaseName, list[float]] = defaultdict(list)
    for segment, name in zip(row, names, strict=True):
        seconds[name].append(segment.seconds)
    totals = {name: math.fsum(seconds[name]) for name in get_args(PhaseName)}
    return tuple(Phase(name, total, total / wall_s if wall_s else 0.0) for name, total in totals.items())


def _total(row: Sequence[Segment], names: Sequence[PhaseName], wanted: PhaseName) -> float:
    return math.fsum(segment.seconds for segment, name in zip(row, names, strict=True) if name == wanted)


def _steps(row: Sequence[Segment], names: Sequence[PhaseName], structure: Structure) -> tuple[Step, ...]:
    steps = []
    i, seen = 0, -1
    for start, end, epoch in structure.bounds:
        while i < len(row) and row[i].end_ns <= start:
            i += 1
        parts: Counter[str] = Counter()
        j = i
        while j < len(row) and row[j].start_ns < end:
            overlap = min(row[j].end_ns, end) - max(row[j].start_ns, start)
            parts[names[j]] += max(overlap, 0)
            j += 1
        own = {name: ns / 1e9 for name, ns in parts.items()}
        net = sum(seconds for name, seconds in own.items() if name not in APART)
        steps.append(Step(start, end, epoch, epoch != seen, net, own))
        seen = epoch
    return tuple(steps)


def _head(loaders: Sequence[LoaderFacts], structure: Structure) -> tuple[int, int]:
    """Batches that workers can have ready before the first one is asked for, and how many workers there are."""
    for facts in loaders:
        if facts.loader == structure.primary:
            return ahead(facts), facts.num_workers
    return 0, 0


def _waits(loaders: Sequence[LoaderFacts], structure: Structure) -> tuple[LoaderWait, ...]:
    found = []
    for facts in loaders:
        own = [one for one in structure.passes if one.loader == facts.loader]
        role = (
            "train" if facts.loader in structure.train_loaders else "validation" if structure.train_loaders else "other"
        )
        found.append(
            LoaderWait(
                facts=facts,
                role=role,
                passes=len(own),
                batches=sum(one.batches for one in own),
                wait_s=math.fsum(one.wait_s + one.first_batch_s for one in own),
                first_batch_s=tuple(one.first_batch_s for one in own if one.batches),
            )
        )
    return tuple(found)


def _between(row: Sequence[Segment], names: Sequence[PhaseName], structure: Structure) -> tuple[float, ...]:
    """Seconds from the end of each training epoch to the start of the next, without validation and checkpoints."""
    train = [one for one in structure.passes if one.loader == structure.primary]
    gaps = []
    for before, after in pairwise(train):
        inside: Mapping[bool, list[float]] = defaultdict(list)
        for segment, name in zip(row, names, strict=True):
            if segment.start_ns >= before.end_ns and segment.end_ns <= after.start_ns:
                inside[name in {"validation", "checkpoint"}].append(segment.seconds)
        gaps.append(math.fsum(inside[False]))
    return tuple(gaps)


def _saves(events: Sequence[Event]) -> tuple[float, ...]:
    """How long each checkpoint took: what is written and synced without a step between is one."""
    lasted: list[float] = []
    depth = start = 0
    goes_on = False
    for event in events:
        if event.kind in phases.MARKS:
            goes_on = False
        elif event.kind is Kind.SAVE and not event.ends:
            start = event.time_ns if depth == 0 else start
            depth += 1
        elif event.kind is Kind.SAVE and depth:
            depth -= 1
            if depth == 0:
                seconds = (event.time_ns - start) / 1e9
                lasted[-1:] = [lasted[-1] + seconds] if goes_on else [*lasted[-1:], seconds]
                goes_on = True
    return tuple(lasted)


def _spans(events: Sequence[Event], kind: Kind) -> tuple[float, ...]:
    """How long each outermost span of one kind took."""
    lasted: list[float] = []
    depth = start = 0
    for event in events:
        if event.kind is not kind:
            continue
        if not event.ends:
            start = event.time_ns if depth == 0 else start
            depth += 1
        elif depth:
            depth -= 1
            if depth == 0:
                lasted.append((event.time_ns - start) / 1e9)
    return tuple(lasted)
