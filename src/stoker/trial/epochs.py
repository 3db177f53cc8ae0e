"""What a step takes in the first epoch of a trial, and in later ones: the first one may fill caches, or compile."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, harmonic_mean

from stoker.attribute import steady
from stoker.attribute.batches import passes_of, train_workers
from stoker.attribute.structure import ahead
from stoker.records.attributed import Attribution, Pass, Step
from stoker.records.observed import LoaderFacts, Observation, WorkerTrack

FEWEST_STEPS = 4
"""Fewer steps than this say nothing about a rate; where steps are fast, a run is watched for many more."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds a step over a whole epoch, the wait for its first batch spread over it; None for what was not seen."""

    first_s: float | None
    later_s: float | None = None


def step_times(seen: Observation, named: Attribution, device_s: float) -> StepTimes:
    """What the first epoch takes, and what those take that follow.

    A loop that waits for its device only now and then queues steps faster than they are done: they take at least
    `device_s`, which the device was busy with one. Nor can an epoch be over before its batches are made, however many
    lay ready for the steps that were seen.
    """
    facts = next((wait.facts for wait in named.loaders if wait.role == "train"), None)
    makers = [one for one in train_workers(seen, seen.tracks[0], named) if one.worker is not None]
    passes = [(one, [named.steps[i] for i in numbers]) for one, numbers in passes_of(named)]
    length = next((one.length for one, _ in passes if one.length), None)
    if not length:
        return StepTimes(max(named.steady.mean_step_s, device_s) if named.steady else None)
    found = [_step_s(one, steps, length, facts, makers, device_s) for one, steps in passes]
    later = [step_s for step_s in found[1:] if step_s is not None]
    return StepTimes(found[0], fmean(later) if later else None)


def _step_s(
    one: Pass,
    steps: Sequence[Step],
    length: int,
    facts: LoaderFacts | None,
    makers: Sequence[WorkerTrack],
    device_s: float,
) -> float | None:
    """Of one epoch: the steps that were seen took what they took, the others are like its steady ones."""
    left = max(length - len(steps), 0)
    if not steps or (left and len(steps) < FEWEST_STEPS):
        return None
    likely = steady.find(steps, ahead(facts), facts.num_workers if facts else 0)
    after_s = math.fsum(step.seconds for step in steps) + (left * likely.mean_step_s if likely else 0.0)
    made = [
        [(batch.begin_ns, batch.end_ns) for batch in maker.batches if one.start_ns < batch.end_ns <= one.end_ns]
        for maker in makers
    ]
    came_ns = one.start_ns + round(one.first_batch_s * 1e9)
    after_s = max(after_s, making_s([own for own in made if own], came_ns, length) or 0.0)
    return one.first_batch_s / length + max(after_s / length, device_s)


def making_s(made: Sequence[Sequence[tuple[int, int]]], came_ns: int, length: int) -> float | None:
    """Seconds from the first batch on until all of an epoch's are made, from begin and end of each worker's first ones.

    Those that were seen took what they took, the others are made as fast as each worker made its later ones. How many
    were made in the time that was watched says less: slow workers all deliver at once and then none does for a while,
    and watching ends anywhere in that. None where no worker made two.
    """
    paces = [fmean(end - begin for begin, end in own[1:]) / 1e9 for own in made if len(own) > 1]
    if not paces or min(paces) <= 0:
        return None
    left = max(length - sum(map(len, made)), 0)
    return max(max(own[-1][1] for own in made) - came_ns, 0) / 1e9 + left * harmonic_mean(paces) / len(made)
