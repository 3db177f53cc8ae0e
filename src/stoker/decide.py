"""Samples of reference and candidate → a decision with an interval. Pure and seeded.

A round runs the reference and the candidate once each, in fresh processes, in random order, close together in time;
what counts is the ratio of their step rates in that round, so that drift of the machine cancels. Rounds are added
until the answer is clear or the budget is spent.

    noise = measure_noise(rounds_of_the_reference_against_itself)
    judgement = judge(rounds, noise, last=False)        # judgement.decision is None: go on
"""

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any

import numpy as np

from stoker.records.compared import Outcomes
from stoker.records.tuning import Interval, Judgement, LossCheck, Noise, Round

Floats = np.ndarray[Any, np.dtype[np.float64]]

LOOKS = (5, 8, 12, 16)
"""After how many rounds the samples are looked at. Fewer than five pairs cannot be wrong less often than one in
twenty (all four above one: 1/16), and every further look is another chance to be wrong."""

EARLY = 3
CLEAR = {EARLY: 1.3, 4: 1.1}
"""An effect that clears the noise by this factor in every one of so many rounds needs no more of them: noise of 30 %
does so about once in fifty times, at either look (simulated with `share_kept` of tests/test_decide.py)."""

MIN_GAIN = 0.03
"""A gain that is surely below this is not worth a setting (the tuner's plan stops at the same figure)."""

LOSS_TOLERANCE, LOSS_TOLERANCE_OTHER_BATCH = 0.02, 0.10
"""What the first losses may differ by, as a share: where only rounding differs, and where batches do."""
UNSEEDED = 0.2

RESAMPLES = 4000
_CONFIDENCE = 0.95
# Student's t at 97.5 %, for 1, 2, … degrees of freedom.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120)


def compare(rounds: Sequence[Round], seed: int = 0) -> Interval:
    """The ratio of step rates over all rounds, with a 95 % interval from resampling the rounds.

    With few rounds a percentile interval is too narrow; its level is widened so that it covers as Student's t does
    (the "expanded percentile" of Hesterberg, What Teachers Should Know about the Bootstrap, 2015).
    """
    if not rounds:
        raise ValueError("no rounds to compare; at least one is needed")
    logs = np.array([_log_ratio(one) for one in rounds])
    low, high = np.quantile(_resampled_means(logs, seed), [_tail(len(rounds)), 1 - _tail(len(rounds))])
    ratio = float(logs.mean())
    return Interval(math.exp(ratio), math.exp(min(ratio, low)), math.exp(max(ratio, high)))


def measure_noise(rounds: Sequence[Round]) -> Noise:
    """Where the reference lies against itself, give or take one standard error; the band always holds 1.

    A gain must clear this band *with its whole interval*: a wider band would count the same noise twice.
    """
    if not rounds:
        return Noise(1.0, 1.0)
    logs = [_log_ratio(one) for one in rounds]
    middle = float(np.mean(logs))
    error = float(np.std(logs, ddof=1)) / math.sqrt(len(logs)) if len(logs) > 1 else abs(middle)
    return Noise(ratio_low=math.exp(min(0.0, middle - error)), ratio_high=math.exp(max(0.0, middle + error)))


def judge(rounds: Sequence[Round], noise: Noise, *, last: bool, seed: int = 0) -> Judgement:
    """Keep, revert or undecided; or None while a look that is still to come could tell.

    `last` says that no more rounds can be had.
    """
    interval = compare(rounds, seed)
    clear = CLEAR.get(len(rounds), math.inf)
    if interval.low > noise.ratio_high * clear:
        return Judgement(interval, "keep", "far above the noise in every round")
    if interval.high < noise.ratio_low / clear:
        return Judgement(interval, "revert", "far slower in every round")
    enough = len(rounds) >= LOOKS[0]
    if enough and (last or len(rounds) in LOOKS):
        if interval.high < 1.0:
            return Judgement(interval, "revert", "slower: the whole interval lies below 1")
        if interval.high < 1.0 + MIN_GAIN:  # also where it is surely faster, but by less than is worth a setting
            return Judgement(interval, "revert", f"no gain of {MIN_GAIN:.0%} is left inside the interval")
        if interval.low > noise.ratio_high:
            return Judgement(interval, "keep", "the whole interval lies above 1 and above the noise")
    if last or len(rounds) >= LOOKS[-1]:
        return Judgement(interval, "undecided", _why_undecided(interval, len(rounds)))
    return Judgement(interval, None, "more rounds could tell")


def compare_losses(
    references: Sequence[Sequence[float | None]],
    candidates: Sequence[Sequence[float | None]],
    *,
    tolerance: float,
    by_step: bool = True,
) -> LossCheck:
    """Do the first losses of the candidate agree with the reference's, within a tolerance or the noise?

    The mean distance over all steps counts, as a share of the reference's mean loss. Two references that are further
    apart than `UNSEEDED` say that the script's randomness cannot be held, so nothing can be told. Where batches hold
    other samples (`by_step` off) steps have nothing to do with each other: then the means are compared, and the noise
    is what their spread makes of them.
    """
    steps = min((len(losses) for losses in (*references, *candidates)), default=0)
    if not references or not candidates or not steps:
        return LossCheck("unknown", None, None, tolerance, 0)
    first, *others = ([loss for loss in losses[:steps] if loss is not None] for losses in references)
    tried = [[loss for loss in losses[:steps] if loss is not None] for losses in candidates]
    if any(len(losses) < steps for losses in (first, *others)):
        return LossCheck("unknown", None, None, tolerance, steps)
    if any(len(losses) < steps for losses in tried):  # no number any more
        return LossCheck("differs", None, None, tolerance, steps)
    if not by_step:
        return _compare_means(first, tried[0], tolerance)
    noise = max((_distance(first, other) for other in others), default=None)
    difference = float(np.median([_distance(first, other) for other in tried]))
    if noise is not None and noise > UNSEEDED:
        return LossCheck("unknown", difference, noise, tolerance, steps)
    same = difference <= max(tolerance, 2 * (noise or 0.0))
    return LossCheck("same" if same else "differs", difference, noise, tolerance, steps)


def _compare_means(reference: Sequence[float], other: Sequence[float], tolerance: float) -> LossCheck:
    mean = float(np.mean(reference)) or 1e-12
    difference = abs(float(np.mean(other)) - mean) / abs(mean)
    noise = math.hypot(_standard_error(reference), _standard_error(other)) / abs(mean)
    same = difference <= max(tolerance, 2 * noise)
    return LossCheck("same" if same else "differs", difference, noise, tolerance, len(reference))


def _standard_error(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def _distance(reference: Sequence[float], other: Sequence[float]) -> float:
    scale = math.fsum(abs(loss) for loss in reference) or 1e-12
    return math.fsum(abs(a - b) for a, b in zip(reference, other, strict=True)) / scale


# ---- two recorded runs -----------------------------------------------------------------------------------

APART = 0.05
"""What two runs of the same command, minutes apart in processes of their own, may differ by without a reason; the
doctor's smallest finding is as large."""
FEWEST_STEPS = 20
"""Steady steps of each run that an interval is taken from."""


def contrast(a_s: Sequence[float], b_s: Sequence[float], seed: int = 0) -> Interval:
    """How much faster B's steps are than A's: the ratio of mean seconds with a 95 % interval.

    Steps next to each other are alike, so blocks of them are drawn; and what the two halves of a run differ by may
    still come, so the interval is widened by it.
    """
    draw = np.random.default_rng(seed)
    first, second = np.asarray(a_s, dtype=float), np.asarray(b_s, dtype=float)
    logs = np.log(_block_means(first, draw)) - np.log(_block_means(second, draw))
    low, high = np.quantile(logs, [(1 - _CONFIDENCE) / 2, (1 + _CONFIDENCE) / 2])
    ratio = math.log(first.mean() / second.mean())
    wander = math.hypot(_wander(first), _wander(second))
    return Interval(math.exp(ratio), math.exp(min(ratio, low) - wander), math.exp(max(ratio, high) + wander))


def conclude(a_s: Sequence[float], b_s: Sequence[float]) -> tuple[Interval | None, Outcomes, str]:
    """Whether run B was faster than run A, as far as one run of each can say."""
    fewest = min(len(a_s), len(b_s))
    if fewest < FEWEST_STEPS:
        return None, "undecided", f"{fewest} steady steps are too few to compare; {FEWEST_STEPS} of each run are needed"
    speed = contrast(a_s, b_s)
    if speed.low > 1 + APART:
        return speed, "faster", "the whole interval lies above what two runs of one command may differ by"
    if speed.high < 1 / (1 + APART):
        return speed, "slower", "the whole interval lies below what two runs of one command may differ by"
    if speed.low > 1 / (1 + APART) and speed.high < 1 + APART:
        return speed, "alike", f"no difference of {APART * 100:.0f} % is left inside the interval"
    if speed.low > 1 or speed.high < 1:
        return speed, "undecided", "a difference, but no larger than two runs of one command may have"
    return speed, "undecided", "the interval holds both faster and slower: the steps vary too much"


def _block_means(values: Floats, draw: np.random.Generator) -> Floats:
    """Means of as many values, drawn in blocks."""
    count = len(values)
    block = max(round(count ** (1 / 3)), 1)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    starts = draw.integers(0, count - block + 1, (RESAMPLES // 4, -(-count // block)))
    means: Floats = (sums[starts + block] - sums[starts]).sum(axis=1) / (starts.shape[1] * block)
    return means


def _wander(values: Floats) -> float:
    """Half of what the halves of a run differ by, in logarithms."""
    half = len(values) // 2
    return abs(math.log(float(values[:half].mean()) / float(values[half:].mean()))) / 2


def _why_undecided(interval: Interval, rounds: int) -> str:
    if rounds < LOOKS[0]:
        return f"{rounds} rounds are too few to decide; {LOOKS[0]} are needed"
    if interval.low > 1.0:
        return "above 1, but not above the noise of the reference against itself"
    return "the interval holds both a gain and a loss"


def _tail(rounds: int) -> float:
    """The share to cut off on each side, for this number of rounds."""
    if rounds == 1:
        return 0.0
    degrees = rounds - 1
    t = _T[degrees - 1] if degrees <= len(_T) else NormalDist().inv_cdf(0.5 + _CONFIDENCE / 2) * (1 + 1 / degrees)
    return NormalDist().cdf(-t * math.sqrt(rounds / degrees))


def _log_ratio(one: Round) -> float:
    return math.log(float(np.median(one.reference_s)) / float(np.median(one.candidate_s)))


def _resampled_means(values: Floats, seed: int) -> Floats:
    picked = np.random.default_rng(seed).integers(0, len(values), (RESAMPLES, len(values)))
    means: Floats = values[picked].mean(axis=1)
    return means
