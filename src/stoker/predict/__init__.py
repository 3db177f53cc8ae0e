"""Records become a forecast of the full epoch and run, put together from parts that were measured apart.

Pure and seeded: the same records give the same forecast, with an interval from resampled blocks of steady steps.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from stoker.attribute.batches import train_passes
from stoker.attribute.steady import SHIFT, mean_of_rounds, quantile
from stoker.records.attributed import Attribution, Pass
from stoker.records.diagnosis import Prediction

ROUNDS = 400
LOW, HIGH = 0.025, 0.975
RUNS_DIFFER = 0.04
"""The interval reaches at least this share to both sides: epochs of one script on one machine differed by up to 7 %
from run to run (docs/doctor.md), which no steps of a single run can show."""
APART = 1.5
"""A first validation this many times as long as all later ones is not one of them."""
FEWEST_LATER = 8
"""Fewer steady steps of later epochs do not say that the first one was another."""


@dataclass(frozen=True, slots=True)
class Parts:
    """An epoch's seconds by part; they add up to it."""

    first_batch_s: float
    head_s: float
    steady_s: float
    validation_s: float
    checkpoint_s: float
    between_s: float
    steady_steps: int
    steps: int

    @property
    def total_s(self) -> float:
        """The epoch."""
        return self.first_batch_s + self.head_s + self.steady_s + self.validation_s + self.checkpoint_s + self.between_s


def forecast(
    seen: Attribution, epochs: float | None, stolen_share: float | None = None, steps: int | None = None
) -> Prediction | None:
    """The full epoch with a 95 % interval, and the run if the number of its epochs, or of its steps, is known.

    What a virtual machine's host takes changes from minute to minute: it may take nothing, or as much again.
    """
    parts = epoch_parts(seen)
    seen = settled(seen)
    if parts is None or seen.steady is None:
        return None
    low_s, high_s = _interval([seen.steps[i].seconds for i in seen.steady.steps])
    rest_s = parts.total_s - parts.steady_s
    epochs = steps / parts.steps if steps and parts.steps else epochs
    run_s = None if epochs is None else _run_s(seen, parts, epochs)
    differ = RUNS_DIFFER + (stolen_share or 0.0)
    low = min(rest_s + low_s * parts.steady_steps, parts.total_s * max(1 - differ, 0.0))
    high = max(rest_s + high_s * parts.steady_steps, parts.total_s * (1 + differ))
    return Prediction(parts.total_s, low, high, run_s)


def epoch_parts(seen: Attribution) -> Parts | None:
    """A typical epoch: what comes once in it, and steady steps for the rest of its length."""
    seen = settled(seen)
    train = train_passes(seen)
    length = next((one.length for one in train if one.length), None)
    if seen.steady is None or not train or length is None:
        return None
    head_s, head = _head(seen)
    steady_steps = max(length - head, 0)
    later = train[1:] or train
    return Parts(
        first_batch_s=quantile([one.first_batch_s for one in later], 0.5),
        head_s=head_s,
        steady_s=seen.steady.mean_step_s * steady_steps,
        validation_s=_validation_s(seen, train, length),
        checkpoint_s=_checkpoint_s(seen, train, length),
        between_s=_mean(seen.between_s) if seen.between_s else _mean([one.retire_s for one in train]),
        steady_steps=steady_steps,
        steps=length,
    )


def settled(seen: Attribution) -> Attribution:
    """The same, with the first epoch's steps as warm-up where it was run to its end and later ones are another matter.

    It may have filled a cache, or compiled something for every shape: no epoch is like it any more.
    """
    steady, train = seen.steady, train_passes(seen)
    if steady is None or not train or not train[0].is_whole:
        return seen
    first = seen.steps[0].epoch
    later = tuple(i for i in steady.steps if seen.steps[i].epoch > first)
    before_s = [seen.steps[i].seconds for i in steady.steps if seen.steps[i].epoch == first]
    later_s = [seen.steps[i].seconds for i in later]
    if not before_s or len(later) < FEWEST_LATER or not _are_apart(before_s, later_s):
        return seen
    makers = next((wait.facts.num_workers for wait in seen.loaders if wait.role == "train"), 1)
    mean_s = mean_of_rounds([seen.steps[i] for i in later], makers)
    return replace(seen, steady=replace(steady, warmup_steps=later[0], steps=later, mean_step_s=mean_s))


def _are_apart(before_s: Sequence[float], later_s: Sequence[float]) -> bool:
    """True if their means differ by more than a warm-up has to, and by more than chance."""
    before, later = _mean(before_s), _mean(later_s)
    if min(before, later) <= 0 or abs(math.log(before / later)) <= SHIFT:
        return False
    (low, high), (later_low, later_high) = _interval(before_s), _interval(later_s)
    return high < later_low or later_high < low


def _head(seen: Attribution) -> tuple[float, int]:
    """The first steps of a typical epoch that are not steady: their seconds and their number.

    Not those after an experiment, which no other epoch has.
    """
    assert seen.steady is not None
    warm = seen.steps[seen.steady.warmup_steps].epoch  # warm-up comes once in a run, not once in an epoch
    epochs = {step.epoch for step in seen.steps if step.epoch > warm} or {warm}
    first = {seen.steps[i].epoch: i for i in reversed(seen.steady.steps)}
    whole = len(seen.steps)
    heads = [step for i, step in enumerate(seen.steps) if step.epoch in epochs and i < first.get(step.epoch, whole)]
    return math.fsum(step.seconds for step in heads) / len(epochs), round(len(heads) / len(epochs))


# ---- validation and checkpoints --------------------------------------------------------------------------


def _validation_s(seen: Attribution, train: Sequence[Pass], length: int) -> float:
    """What validation adds to an epoch: once between epochs, or every so many steps inside."""
    total_s = next(phase.seconds for phase in seen.phases if phase.name == "validation")
    missing_s = math.fsum(_missing_s(one) for one in seen.passes if not one.is_train)
    if not total_s:
        return 0.0
    inside_s = math.fsum(step.parts.get("validation", 0.0) for step in seen.steps)
    inside_missing_s = math.fsum(_missing_s(one) for one in seen.passes if not one.is_train and _is_inside(one, train))
    early_s = _early_s(seen, train)
    between_s = total_s - early_s - inside_s + missing_s - inside_missing_s - _first_validation_s(seen, train)
    steps = max(len(seen.steps), 1)
    return max(between_s, 0.0) / _cycles(train) + (inside_s + inside_missing_s) * length / steps


def _first_validation_s(seen: Attribution, train: Sequence[Pass]) -> float:
    """What the first validation took longer than those that followed: it compiled, or filled a cache."""
    own: dict[int, list[float]] = {}
    for one in seen.passes:
        if not one.is_train and one.start_ns > train[0].start_ns and not _is_inside(one, train):
            own.setdefault(one.loader, []).append((one.end_ns - one.start_ns) / 1e9 + _missing_s(one))
    return math.fsum(
        took[0] - _mean(took[1:]) for took in own.values() if len(took) > 1 and took[0] > APART * max(took[1:])
    )


def _missing_s(one: Pass) -> float:
    """Seconds that a pass that was cut did not take."""
    if not one.is_cut or one.length is None or one.batch_s is None:
        return 0.0
    return (one.length - one.batches) * one.batch_s


def _is_inside(one: Pass, train: Sequence[Pass]) -> bool:
    return any(outer.start_ns < one.start_ns and one.end_ns < outer.end_ns for outer in train)


def _early_s(seen: Attribution, train: Sequence[Pass]) -> float:
    """Validation before training begins, as some frameworks do for a check."""
    first = train[0].start_ns
    return math.fsum(
        (one.end_ns - one.start_ns) / 1e9 + _missing_s(one)
        for one in seen.passes
        if not one.is_train and one.end_ns < first
    )


def _cycles(train: Sequence[Pass]) -> int:
    """Epochs that came to their end, so that what follows an epoch was seen."""
    return max(sum(1 for one in train if one.is_whole or one.is_cut), 1)


def _checkpoint_s(seen: Attribution, train: Sequence[Pass], length: int) -> float:
    total_s = next(phase.seconds for phase in seen.phases if phase.name == "checkpoint")
    inside_s = math.fsum(step.parts.get("checkpoint", 0.0) for step in seen.steps)
    return (total_s - inside_s) / _cycles(train) + inside_s * length / max(len(seen.steps), 1)


def _run_s(seen: Attribution, parts: Parts, epochs: float) -> float:
    """Start-up once, the first epoch's own first batch, what warm-up takes longer, then alike epochs, then the end."""
    end_s = next(phase.seconds for phase in seen.phases if phase.name == "shutdown")
    retired_s = math.fsum(one.retire_s for one in seen.passes)
    first = next((one.first_batch_s for one in seen.passes if one.is_train), parts.first_batch_s)
    once_s = (
        seen.startup_s
        + first
        - parts.first_batch_s
        + _warmup_s(seen, parts.steps, epochs)
        + _first_validation_s(seen, train_passes(seen))
        + max(end_s - retired_s, 0.0)
    )
    return once_s + epochs * parts.total_s


def _warmup_s(seen: Attribution, length: int, epochs: float) -> float:
    """What warm-up adds to so many typical epochs: it comes once in a run.

    Where no epoch after it was seen, it is part of the typical one, and has to be taken out of all but one. Batches of
    a first epoch that is all warm-up and that experiments took aside would have taken as long as its others.
    """
    assert seen.steady is not None
    warm = seen.steps[: seen.steady.warmup_steps]
    if all(step.epoch == seen.steps[0].epoch for step in seen.steps):
        longer_s = math.fsum(step.seconds - seen.steady.mean_step_s for step in warm)
        return -(epochs - 1) * max(longer_s, 0.0)
    head_s, head = _head(seen)
    own: dict[int, list[float]] = {}
    for step in warm:
        own.setdefault(step.epoch, []).append(step.seconds)
    first = train_passes(seen)[0]
    is_all_warm = first.is_whole and seen.steps[len(warm)].epoch != seen.steps[0].epoch
    longer_s = 0.0
    for epoch, seconds in own.items():
        count = len(seconds)
        typical_s = head_s * min(count / max(head, 1), 1.0) + max(count - head, 0) * seen.steady.mean_step_s
        share = count / length if is_all_warm and epoch == seen.steps[0].epoch else 1.0
        longer_s += (math.fsum(seconds) - typical_s) / min(share, 1.0)
    return longer_s


# ---- interval --------------------------------------------------------------------------------------------


def _interval(seconds: Sequence[float]) -> tuple[float, float]:
    """The mean step's 95 % interval: blocks are drawn, because neighbouring steps are alike."""
    count = len(seconds)
    if count < 4:  # noqa: PLR2004  nothing to resample
        return min(seconds), max(seconds)
    draw = random.Random(0)  # noqa: S311  not for secrets
    block = max(round(count ** (1 / 3)), 1)
    means = []
    for _ in range(ROUNDS):
        picked: list[float] = []
        while len(picked) < count:
            start = draw.randrange(count - block + 1)
            picked += seconds[start : start + block]
        means.append(_mean(picked[:count]))
    half = count // 2
    wander = abs(_mean(seconds[:half]) - _mean(seconds[half:])) / 2  # what a longer run may still do
    mean = _mean(seconds)
    return min(quantile(means, LOW), mean - wander), max(quantile(means, HIGH), mean + wander)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0
