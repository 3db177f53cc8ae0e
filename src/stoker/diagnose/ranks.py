"""Causes between ranks that train together."""

import math
from collections import Counter
from collections.abc import Sequence

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
    together = list(zip(*arrivals, strict=False))[1:]
    last = Counter(times.index(max(times)) for times in together)
    slow, count = last.most_common(1)[0]
    steps, late_s = len(together), _late_s(slow, together)
    gain = facts.step_s / max(facts.step_s - late_s * (1 - 1 / len(arrivals)), 0.05 * facts.step_s)
    if gain < GAIN or count < MOSTLY * steps:
        return None
    rank = facts.seen.tracks[slow].rank
    return finding(
        "straggler",
        ("the last rank to arrive", str(rank if rank is not None else facts.seen.tracks[slow].pid), ""),
        ("in this share of the steps", count / steps, "share"),
        ("after the others, on average", late_s, "s"),
        ("a step", facts.step_s, "s"),
        gain=gain,
        off=facts.off("step"),
        sure=noise.likely(count / steps, MOSTLY, 1 / math.sqrt(steps)),
    )


def _late_s(slow: int, together: Sequence[Sequence[int]]) -> float:
    """How much later than the others a rank comes on average; where now one is late and now another, that cancels."""
    others = [(sum(times) - times[slow]) / (len(times) - 1) for times in together]
    return math.fsum(times[slow] - other for times, other in zip(together, others, strict=True)) / len(together) / 1e9


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
