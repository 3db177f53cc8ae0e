import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.decide import CLEAR, EARLY, LOOKS, MIN_GAIN, compare, compare_losses, judge, measure_noise
from stoker.records import Judgement, Noise, Round

QUIET = Noise(1.0, 1.0)


def process(draw: np.random.Generator, step_s: float, noise: float) -> tuple[float, ...]:
    """Windows of one process: a level of its own, and a little noise around it."""
    level = step_s * math.exp(draw.normal(0, noise))
    return tuple(float(w) for w in level * np.exp(draw.normal(0, 0.03, 5)))


def one_round(draw: np.random.Generator, noise: float, gain: float) -> Round:
    machine = math.exp(draw.normal(0, 0.1))  # the machine's drift, shared by both
    return Round(process(draw, machine, noise), process(draw, machine / gain, noise))


def investigate(draw: np.random.Generator, noise: float, gain: float, most: int = LOOKS[-1]) -> Judgement:
    band = measure_noise([one_round(draw, noise, 1.0) for _ in range(LOOKS[0])])
    rounds: list[Round] = []
    for look in (*CLEAR, *LOOKS):
        while len(rounds) < look:
            rounds.append(one_round(draw, noise, gain))
        judgement = judge(rounds, band, last=look >= most)
        if judgement.decision is not None:
            return judgement
    raise AssertionError("the last look must decide")


def share_kept(noise: float, gain: float, investigations: int = 300, most: int = LOOKS[-1]) -> float:
    draw = np.random.default_rng(7)
    kept = [investigate(draw, noise, gain, most).decision == "keep" for _ in range(investigations)]
    return float(np.mean(kept))


@pytest.mark.parametrize("noise", [0.01, 0.03, 0.1, 0.2, 0.3])
@pytest.mark.parametrize("most", [4, LOOKS[-1]])
def test_no_gain_is_kept_in_at_most_one_of_twenty_whatever_the_noise(noise: float, most: int) -> None:
    assert share_kept(noise, gain=1.0, most=most) <= 0.05


def test_four_rounds_are_enough_for_a_large_gain_in_much_noise() -> None:
    assert share_kept(noise=0.08, gain=1.5, most=4) >= 0.8


def test_a_gain_of_ten_percent_is_found_in_four_of_five() -> None:
    assert share_kept(noise=0.04, gain=1.1) >= 0.8


def test_a_gain_that_is_sure_but_too_small_for_a_setting_is_not_kept() -> None:
    rounds = [Round((1.01 + i / 1e5,), (1.0,)) for i in range(LOOKS[0])]
    judgement = judge(rounds, QUIET, last=False)
    assert judgement.interval.low > 1
    assert (judgement.decision, judgement.reason) == ("revert", "no gain of 3% is left inside the interval")


def test_a_loss_is_never_kept() -> None:
    draw = np.random.default_rng(1)
    assert {investigate(draw, 0.03, 0.9).decision for _ in range(50)} <= {"revert", "undecided"}


durations = st.lists(st.floats(1e-4, 1e3), min_size=1, max_size=6).map(tuple)
rounds = st.lists(st.builds(Round, durations, durations), min_size=1, max_size=20)


@given(samples=rounds)
def test_the_interval_holds_the_ratio_and_is_the_same_every_time(samples: list[Round]) -> None:
    interval = compare(samples)
    assert 0 < interval.low <= interval.ratio <= interval.high
    assert compare(samples) == interval


@given(samples=rounds)
def test_swapping_reference_and_candidate_turns_the_ratio_over(samples: list[Round]) -> None:
    swapped = [Round(one.candidate_s, one.reference_s) for one in samples]
    assert compare(swapped).ratio == pytest.approx(1 / compare(samples).ratio)


@given(samples=rounds)
def test_the_noise_band_holds_one(samples: list[Round]) -> None:
    band = measure_noise(samples)
    assert band.ratio_low <= 1.0 <= band.ratio_high


@given(samples=rounds, last=st.booleans())
def test_the_end_of_the_budget_always_decides_and_too_few_rounds_never_keep(samples: list[Round], last: bool) -> None:
    judgement = judge(samples, QUIET, last=last)
    assert judgement.decision is not None or not last
    if len(samples) < EARLY:
        assert judgement.decision == ("undecided" if last else None)


def test_no_rounds_are_refused() -> None:
    with pytest.raises(ValueError, match="no rounds to compare"):
        compare([])


def test_each_decision_says_why() -> None:
    def steady(gain: float) -> list[Round]:
        return [Round((1.0 + i / 1000,), (1.0 / gain,)) for i in range(LOOKS[0])]

    assert judge(steady(2.0)[:EARLY], QUIET, last=False).reason.startswith("far above the noise")
    assert judge(steady(0.5)[:EARLY], QUIET, last=False).reason.startswith("far slower")
    assert judge(steady(CLEAR[EARLY] - 0.05)[:EARLY], QUIET, last=False).decision is None
    assert judge(steady(1.2), QUIET, last=False).reason.startswith("the whole interval lies above 1")
    assert judge(steady(0.8), QUIET, last=False).reason.startswith("slower")
    level = [Round((1.0 + (-1) ** i * MIN_GAIN / 5,), (1.0,)) for i in range(LOOKS[0])]
    assert judge(level, QUIET, last=False).reason.startswith("no gain of 3%")
    noisy = Noise(0.7, 1.3)
    assert "not above the noise" in judge(steady(1.2), noisy, last=True).reason
    assert "too few" in judge(steady(1.2)[:3], QUIET, last=True).reason


FLAT = (1.0, 0.9, 0.8)


@pytest.mark.parametrize(
    ("references", "candidates", "verdict"),
    [
        ([FLAT, FLAT], [FLAT], "same"),
        ([FLAT, FLAT], [(1.01, 0.91, 0.81)], "same"),
        ([FLAT, FLAT], [(1.2, 1.1, 1.0)], "differs"),
        ([FLAT, FLAT], [(1.0, None, 0.8)], "differs"),
        ([FLAT, (1.1, 1.0, 0.9)], [(1.2, 1.1, 1.0)], "same"),  # two references are as far apart
        ([FLAT, (2.0, 0.2, 0.1)], [(1.2, 1.1, 1.0)], "unknown"),  # the script's randomness cannot be held
        ([FLAT, (1.0, None, 0.8)], [FLAT], "unknown"),
        ([], [FLAT], "unknown"),
        ([FLAT], [()], "unknown"),
    ],
)
def test_losses_are_compared_within_a_tolerance_and_the_noise(
    references: list[tuple[float | None, ...]], candidates: list[tuple[float | None, ...]], verdict: str
) -> None:
    assert compare_losses(references, candidates, tolerance=0.02).verdict == verdict


def test_other_batches_are_compared_by_their_mean_loss() -> None:
    noisy, other = (0.4, 1.0, 0.7, 0.5), (0.9, 0.5, 0.6, 0.65)
    assert compare_losses([noisy], [other], tolerance=0.1).verdict == "differs"
    assert compare_losses([noisy], [other], tolerance=0.1, by_step=False).verdict == "same"
    assert compare_losses([noisy], [(3.0, 4.0, 3.5, 5.0)], tolerance=0.1, by_step=False).verdict == "differs"


@given(losses=st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=20))
def test_a_run_has_the_same_losses_as_itself(losses: list[float]) -> None:
    check = compare_losses([losses, losses], [losses], tolerance=0.0)
    assert (check.verdict, check.difference, check.noise, check.steps) == ("same", 0.0, 0.0, len(losses))
