"""A run over time, in at most a few hundred points, however long it was: what pictures are drawn from."""

import math
from collections.abc import Iterator, Mapping, Sequence

from stoker.attribute.batches import made_by, matched, ready, train_workers
from stoker.attribute.excerpt import excerpt
from stoker.attribute.excise import Clock, excise, windows_of
from stoker.attribute.steady import SPIKE, quantile
from stoker.records.attributed import Attribution, Course, LongStep, ProcessMemory, Step, StepBin
from stoker.records.observed import Meter, Observation, Track

POINTS = 600
"""A picture is about this many pixels wide."""
TIMES = 240
"""For what has several lines on top of each other."""
LONG_STEPS = 40
MOST_WORKERS = 16


def course(seen: Observation, track: Track, named: Attribution) -> Course:
    """How the run went, on the clock without experiments."""
    clock = Clock(windows_of(track))
    cut = excise(track)
    made = made_by(train_workers(seen, track, named), clock)
    used_up = [(clock.read(window.end_ns), window.batches) for window in track.probes.windows if window.batches]
    cuts_ns = [clock.read(start_ns) for start_ns, _ in windows_of(track)]
    busy = list(_busy(cut, seen.meters, clock))
    return Course(
        seconds=named.wall_s,
        steps=tuple(_bins(named.steps, cut.start_ns, ready(made, named, used_up))),
        warmup_steps=named.steady.warmup_steps if named.steady else 0,
        epoch_starts=tuple(i for i, step in enumerate(named.steps) if step.is_first and i),
        long_steps=_long(named),
        memory=tuple(_memory(seen, track, named, clock)),
        memory_limit_bytes=seen.machine.ram_bytes or None,
        memory_free_bytes=min(
            (meter.free_bytes for meter in seen.meters if meter.free_bytes is not None), default=None
        ),
        busy_times_s=tuple(time_s for time_s, _ in busy),
        busy_shares=tuple(share for _, share in busy),
        excerpt=excerpt(cut, named, cuts_ns, made, matched(made, named, used_up)),
    )


# ---- steps -----------------------------------------------------------------------------------------------


def _bins(steps: Sequence[Step], start_ns: int, waiting: Mapping[int, int]) -> Iterator[StepBin]:
    size = max(math.ceil(len(steps) / POINTS), 1)
    for first in range(0, len(steps), size):
        held = steps[first : first + size]
        seconds = [step.seconds for step in held]
        depths = [waiting[i] for i in range(first, first + len(held)) if i in waiting]
        yield StepBin(
            first=first,
            count=len(held),
            start_s=(held[0].start_ns - start_ns) / 1e9,
            low_s=min(seconds),
            median_s=quantile(seconds, 0.5),
            high_s=max(seconds),
            ready=sum(depths) / len(depths) if depths else None,
        )


def _long(named: Attribution) -> tuple[LongStep, ...]:
    """Spikes among the steady steps, the longest of them, in order."""
    if named.steady is None:
        return ()
    limit = SPIKE * named.steady.step_s.median
    numbers = [i for i in named.steady.steps if named.steps[i].seconds > limit]
    longest = sorted(numbers, key=lambda i: -named.steps[i].seconds)[:LONG_STEPS]
    usual = _usual(named)
    return tuple(LongStep(i, named.steps[i].seconds, _grown(named.steps[i], usual)) for i in sorted(longest))


def _usual(named: Attribution) -> dict[str, float]:
    """What each part of a step takes in the middle."""
    assert named.steady is not None
    steps = [named.steps[i] for i in named.steady.steps]
    parts = {name for step in steps for name in step.parts}
    return {name: quantile([step.parts.get(name, 0.0) for step in steps], 0.5) for name in parts}


def _grown(step: Step, usual: Mapping[str, float]) -> str:
    return max(step.parts, key=lambda name: step.parts[name] - usual.get(name, 0.0))


# ---- memory ----------------------------------------------------------------------------------------------


def _memory(seen: Observation, track: Track, named: Attribution, clock: Clock) -> Iterator[ProcessMemory]:
    """The most that each process held in each stretch of time; a worker's successors share its name."""
    names = _process_names(seen, track, named)
    start_ns, found = clock.read(track.start_ns), dict[str, dict[int, int]]()
    stretch_s = max(named.wall_s / TIMES, 1e-9)
    for meter in seen.meters:
        if clock.is_inside(meter.time_ns):
            continue
        place = int((clock.read(meter.time_ns) - start_ns) / 1e9 / stretch_s)
        held: dict[str, int] = {}
        for pid, size in meter.rss_bytes.items():
            name = names.get(pid, "other")
            if size:  # a process that has ended and was not yet waited for holds nothing
                held[name] = max(held.get(name, 0), size)
        for name, size in held.items():
            row = found.setdefault(name, {})
            row[place] = max(row.get(place, 0), size)
    places = sorted({place for row in found.values() for place in row})
    times_s = tuple(place * stretch_s for place in places)
    for name in sorted(found, key=_order):
        yield ProcessMemory(name, times_s, tuple(found[name].get(place) for place in places))


def _process_names(seen: Observation, track: Track, named: Attribution) -> dict[str, str]:
    roles = {one.facts.loader: one.role for one in named.loaders}
    names = {str(other.pid): f"rank {other.rank}" for other in seen.tracks if other.rank is not None}
    names[str(track.pid)] = "main"
    for worker in seen.workers:
        if worker.worker is not None:
            role = roles.get(worker.loader or 0, "other")
            role = "worker" if role == "train" else f"{role} worker"
            names[str(worker.pid)] = f"{role} {worker.worker}" if worker.worker < MOST_WORKERS else f"{role} …"
    return names


def _order(name: str) -> tuple[int, int, str]:
    number = name.rpartition(" ")[2]
    kinds = ["main", "rank", "worker", "validation worker", "other worker", "other"]
    kind = name.rpartition(" ")[0] or name
    return kinds.index(kind) if kind in kinds else len(kinds), int(number) if number.isdecimal() else 999, name


# ---- device ----------------------------------------------------------------------------------------------


def _busy(cut: Track, meters: Sequence[Meter], clock: Clock) -> Iterator[tuple[float, float]]:
    """The device's busy share over time: from its own timeline where it has one, else as its driver says."""
    if cut.device_starts_ns:
        yield from _busy_by_work(cut)
        return
    for meter in meters[:: max(len(meters) // TIMES, 1)]:
        if meter.device_busy_share is not None and not clock.is_inside(meter.time_ns):
            yield (clock.read(meter.time_ns) - cut.start_ns) / 1e9, meter.device_busy_share


def _busy_by_work(cut: Track) -> Iterator[tuple[float, float]]:
    stretch_ns = max((cut.end_ns - cut.start_ns) // TIMES, 1)
    busy_ns = [0] * (TIMES + 1)
    for start_ns, end_ns in zip(cut.device_starts_ns, cut.device_ends_ns, strict=True):
        at_ns = max(start_ns, cut.start_ns)
        while at_ns < min(end_ns, cut.end_ns):
            place = (at_ns - cut.start_ns) // stretch_ns
            until_ns = min(end_ns, cut.start_ns + (place + 1) * stretch_ns)
            busy_ns[min(place, TIMES)] += until_ns - at_ns
            at_ns = until_ns
    for place in range(TIMES):
        yield (place + 1) * stretch_ns / 1e9, min(busy_ns[place] / stretch_ns, 1.0)
