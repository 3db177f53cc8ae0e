"""Shares and probes become findings: one pure function for each cause, ordered by the gain they could bring."""

import dataclasses
from collections.abc import Sequence

from stoker.diagnose import compute, data, feeding, loop, ranks, reading
from stoker.diagnose.causes import CAUSES, GAIN, RANK
from stoker.diagnose.facts import Facts
from stoker.diagnose.gather import gather, others_share
from stoker.records.attributed import Attribution
from stoker.records.diagnosis import Ceilings, Diagnosis, Finding
from stoker.records.observed import Observation, Track

RULES = (*data.RULES, *reading.RULES, *feeding.RULES, *loop.RULES, *compute.RULES, *ranks.RULES)
INPUT = {rule.__name__.replace("_", "-") for rule in (*data.RULES, *reading.RULES, *feeding.RULES)}
"""Causes that make the loop wait for data: they share one gain."""
SURE = 0.6
"""A finding that is less likely than this is not made: a coin says as much."""
RESIDUAL, CROWDED = "decode-cpu", {"thread-oversubscription", "too-many-workers", "cpu-quota"}
"""Cores that are full say little about the work, as long as they are full of what competes for them."""
ALIKE = 0.6
"""Of two findings, the more specific goes first if its gain is at least this share of the other's."""


def diagnose(seen: Observation, track: Track, named: Attribution, said: Diagnosis) -> Diagnosis:
    """The same diagnosis with ceilings, findings and verdict."""
    facts = gather(seen, track, named, said)
    fatal = feeding.out_of_shm(track)
    if facts is None:
        return said if fatal is None else dataclasses.replace(said, findings=(fatal,), verdict=fatal.cause)
    found = [_of_epoch(one, facts) for rule in RULES if (one := rule(facts)) is not None]
    found = order([one for one in found if _matters(one)], facts)
    found.sort(key=lambda one: one != fatal)  # what ended the run comes first
    bound = compute.compute_bound(facts)
    if not any(_matters(one) for one in found):
        bound = bound or data.decoded_beside_idle_cores(facts)
        found += [bound] if bound is not None else []
    verdict = next((one.cause for one in found if _matters(one) or one is bound), "healthy")
    if found and not any(_matters(one) or one is bound for one in found):
        found = []
    others = others_share(track.probes)
    found = [dataclasses.replace(one, confidence=min(one.confidence, 1 - (others or 0.0))) for one in found]
    said = dataclasses.replace(said, ceilings=_ceilings(facts), others_share=others)
    return dataclasses.replace(said, findings=tuple(_linked(found)), verdict=verdict)


def _of_epoch(one: Finding, facts: Facts) -> Finding:
    """A gain in each step, as a gain of the whole epoch: what comes once in it stays."""
    whole_s, steps = facts.epoch_s, facts.said.steps_per_epoch
    if one.gain_max is None or one.cause in ONCE or not whole_s or not steps:
        return one
    share = min(steps * facts.wall_step_s / whole_s, 1.0)
    return dataclasses.replace(one, gain_max=1 / (1 - share * (1 - 1 / one.gain_max)))


ONCE = {"worker-respawn", "dataset-pickle", "checkpoint-stall", "validation-stall", "cold-cache", "recompile"}
"""Causes whose gain is that of an epoch or a run already."""


def _matters(one: Finding) -> bool:
    """Worth a change: it brings speed, or averts a kill, and it is more than noise."""
    return (one.gain_max is None or one.gain_max >= GAIN) and one.confidence >= SURE


def order(found: Sequence[Finding], facts: Facts) -> list[Finding]:
    """Largest gain first; among about equal gains the more specific cause."""
    left, ordered = list(found), []
    while left:
        causes = {one.cause for one in left}
        free = [one for one in left if not (one.cause == RESIDUAL and causes & CROWDED)]
        most = max(_worth(one) for one in free)
        near = [one for one in free if _worth(one) >= ALIKE * most]
        first = min(near, key=lambda one: _rank(one, facts))
        ordered.append(first)
        left.remove(first)
    return ordered


def _worth(one: Finding) -> float:
    """What can be expected of it: its gain, by how likely it is."""
    return ((one.gain_max or 1.0) - 1) * one.confidence


def _rank(one: Finding, facts: Facts) -> float:
    if one.cause == "cold-cache" and not reading.keeps_up_when_warm(facts):
        return RANK["request-latency"] + 0.5  # not only the first epoch is slow
    return float(RANK[one.cause])


def _linked(found: Sequence[Finding]) -> list[Finding]:
    """Each finding knows what bounds the run after it: the next one that is not about the same time."""
    linked = []
    for i, one in enumerate(found):
        others = [later.cause for later in found[i + 1 :] if _is_input(later) != _is_input(one)]
        after = next(iter(others), "compute-bound")
        linked.append(dataclasses.replace(one, then=after if one.gain_max is not None else None))
    return linked


def _is_input(one: Finding) -> bool:
    return one.cause in INPUT


def _ceilings(facts: Facts) -> Ceilings:
    mean_s = facts.said.mean_step_s
    size = facts.said.samples_per_s * mean_s if facts.said.samples_per_s and mean_s else None
    loader_s = facts.loader_s  # as measured with workers; without, what making a batch takes
    if loader_s and not facts.workers:
        loader_s += facts.ordering_s
    return Ceilings(
        loader_samples_per_s=size / loader_s if size and loader_s else None,
        compute_samples_per_s=size / facts.compute_s if size and facts.compute_s else None,
    )


__all__ = ["CAUSES", "RULES", "diagnose"]
