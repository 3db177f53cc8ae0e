"""The steady part of a run is found, not assumed: warm-up by a change point, then medians, drift and spikes."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

from stoker.records.attributed import Spike, Spread, Steady, Step

SHIFT = 0.1
"""Warm-up must differ from what follows by at least this much (in logarithms: about 10 %)."""
CLIP, CLIP_LEAST = 4.0, 0.7
"""Steps further than this many deviations from the median, and than a factor of two, do not move the change point."""
SPIKE = 3.0
"""A step of this many medians is a spike."""
DRIFT_STEPS = 30
"""Fewer steps say nothing about drift."""
AGREEMENT = 0.7
"""Spikes have a period if this share of the distances between them agree, within one step."""


def find(steps: Sequence[Step], head: int, makers: int = 1, breaks_ns: Sequence[int] = ()) -> Steady | None:
    """The steady steps, without the first of each epoch and the `head` batches that were ready before it.

    At `breaks_ns` the loop stood still while workers went on: what follows is like the start of an epoch.
    `makers` workers take turns: slow ones deliver as many batches at once and then none for a while, so the mean is
    over whole rounds of them.
    """
    candidates = _inner(steps, head, breaks_ns)
    if not candidates:
        return None
    seconds = [steps[i].seconds for i in candidates]
    warm = change_point(seconds)
    chosen, kept = candidates[warm:], seconds[warm:]
    return Steady(
        warmup_steps=chosen[0],
        steps=tuple(chosen),
        step_s=spread(kept),
        mean_step_s=mean_of_rounds([steps[i] for i in chosen], makers),
        drift_share=_drift(kept),
        spikes=_spikes(kept),
    )


def mean_of_rounds(steps: Sequence[Step], makers: int) -> float:
    """Seconds a step, over as many steps of each epoch as are a multiple of `makers`; over all, if there are fewer."""
    epochs: dict[int, list[float]] = {}
    for step in steps:
        epochs.setdefault(step.epoch, []).append(step.seconds)
    rounds = [value for own in epochs.values() for value in own[len(own) % max(makers, 1) :]]
    kept = rounds or [step.seconds for step in steps]
    return math.fsum(kept) / len(kept)


def _inner(steps: Sequence[Step], head: int, breaks_ns: Sequence[int]) -> list[int]:
    """Steps that are not the first of their epoch, nor among the batches made while it, or a break, was waited for.

    Where hardly any are left, those after breaks count too, and then those of an epoch's start.
    """
    all_but_first = [i for i, step in enumerate(steps) if not step.is_first]
    enough = max(8, len(all_but_first) // 4)
    for breaks in (breaks_ns, ()):
        places = _places(steps, breaks)
        rest = [i for i in all_but_first if places[i] > head]
        if len(rest) >= enough:
            return rest
    return all_but_first or list(range(len(steps)))


def _places(steps: Sequence[Step], breaks_ns: Sequence[int]) -> list[int]:
    """How many steps came before each, since its epoch began or the last break was over."""
    places: list[int] = []
    before = (-1, 0)
    for step in steps:
        now = step.epoch, bisect_right(breaks_ns, step.start_ns)
        places.append(places[-1] + 1 if places and now == before else 0)
        before = now
    return places


def change_point(seconds: Sequence[float]) -> int:
    """How many of the first steps are warm-up: where two levels explain the times better than one."""
    count = len(seconds)
    if count < 6:  # noqa: PLR2004  two levels need a few steps each
        return 0
    logs = _clipped([math.log(max(value, 1e-9)) for value in seconds])
    total, squares = _sums(logs), _sums([value * value for value in logs])
    whole = _error(total, squares, 0, count)
    best, gain = 0, 0.0
    for k in range(1, count // 2 + 1):
        left = whole - _error(total, squares, 0, k) - _error(total, squares, k, count)
        if left > gain:
            best, gain = k, left
    if not best or whole - gain > _error_of_a_line(logs):  # steps that grow all the time are drift
        return 0
    shift = abs(total[best] / best - (total[count] - total[best]) / (count - best))
    noise = (whole - gain) / max(count - 2, 1)
    return best if shift > SHIFT and gain > 3 * noise * math.log(count) else 0


def _clipped(logs: list[float]) -> list[float]:
    middle = quantile(logs, 0.5)
    deviation = quantile([abs(value - middle) for value in logs], 0.5) * 1.4826
    reach = max(CLIP * deviation, CLIP_LEAST)
    low, high = middle - reach, middle + reach
    return [min(max(value, low), high) for value in logs]


def _sums(values: Sequence[float]) -> list[float]:
    sums = [0.0]
    for value in values:
        sums.append(sums[-1] + value)
    return sums


def _error(total: list[float], squares: list[float], i: int, j: int) -> float:
    mean = (total[j] - total[i]) / (j - i)
    return squares[j] - squares[i] - mean * mean * (j - i)


def _error_of_a_line(values: Sequence[float]) -> float:
    """What the best straight line leaves unexplained."""
    count = len(values)
    middle, mean = (count - 1) / 2, math.fsum(values) / count
    across = math.fsum((i - middle) * (value - mean) for i, value in enumerate(values))
    along = math.fsum((i - middle) ** 2 for i in range(count))
    return math.fsum((value - mean) ** 2 for value in values) - across * across / along


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of the values lie, interpolated."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def spread(values: Sequence[float]) -> Spread:
    """Median, p95 and p99."""
    return Spread(quantile(values, 0.5), quantile(values, 0.95), quantile(values, 0.99))


def _drift(seconds: Sequence[float]) -> float | None:
    if len(seconds) < DRIFT_STEPS:
        return None
    third = len(seconds) // 3
    first, last = quantile(seconds[:third], 0.5), quantile(seconds[-third:], 0.5)
    return last / first - 1 if first > 0 else None


def _spikes(seconds: Sequence[float]) -> Spike | None:
    limit = SPIKE * quantile(seconds, 0.5)
    places = [i for i, value in enumerate(seconds) if value > limit]
    if not places or len(places) > len(seconds) // 4:
        return None
    mean = math.fsum(seconds[i] for i in places) / len(places)
    gaps = [b - a for a, b in pairwise(places)]
    return Spike(len(places), mean, _period(gaps))


def _period(gaps: Sequence[int]) -> int | None:
    if len(gaps) < 2:  # noqa: PLR2004  one distance is no period
        return None
    common = round(quantile(gaps, 0.5))
    agree = sum(1 for gap in gaps if abs(gap - common) <= 1)
    return common if agree >= AGREEMENT * len(gaps) else None
