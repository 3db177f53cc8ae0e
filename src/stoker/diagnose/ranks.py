"""Causes between ranks that train together."""

import math
from collections import Counter

from stoker.attribute.timeline import decode_events
from stoker.diagnose import noise
from stoker.diagnose.causes import GAIN, finding
from stoker.diagnose.facts import Facts
from stoker.records.diagnosis import Finding
from stoker.records.observed import Kind, Track

MOSTLY = 0.7
"""The same rank must be last in this share of the steps."""
FEWEST_STEPS = 8


def straggler(facts: Facts) -> Finding | None:
    """Who comes last to the all-reduce, and how long the others wait for it there."""
    arrivals = [_arrivals(track) for track in facts.seen.tracks]
    arrivals = [times for times in arrivals if len(times) >= FEWEST_STEPS]
    if len(arrivals) < 2:  # noqa: PLR2004
        return None
    steps = min(len(times) for times in arrivals)
    last: Counter[int] = Counter()
    waited_s = 0.0
    for i in range(1, steps):
        times = [times[i] for times in arrivals]
        last[times.index(max(times))] += 1
        waited_s += (max(times) - min(times)) / 1e9
    slow, count = last.most_common(1)[0]
    mean_s = waited_s / (steps - 1)
    gain = facts.step_s / max(facts.step_s - mean_s * (1 - 1 / len(arrivals)), 0.05 * facts.step_s)
    if gain < GAIN or count < MOSTLY * (steps - 1):
        return None
    rank = facts.seen.tracks[slow].rank
    return finding(
        "straggler",
        ("the last rank to arrive", str(rank if rank is not None else facts.seen.tracks[slow].pid), ""),
        ("in this share of the steps", count / (steps - 1), "share"),
        ("the first rank waits for it in a step", mean_s, "s"),
        ("a step", facts.step_s, "s"),
        gain=gain,
        off=facts.off("step"),
        sure=noise.likely(count / (steps - 1), MOSTLY, 1 / math.sqrt(steps)),
    )


def _arrivals(track: Track) -> list[int]:
    """When each outermost backward began: what comes after it, all ranks do together."""
    found, depth = [], 0
    for event in decode_events(track):
        if event.kind is Kind.BACKWARD:
            if not event.ends:
                found += [event.time_ns] if depth == 0 else []
                depth += 1
            else:
                depth = max(depth - 1, 0)
    return found


RULES = (straggler,)
