"""The error of a figure comes from its samples, and the chance of a claim from the error."""

import math

from hypothesis import given
from hypothesis import strategies as st

from stoker.diagnose import noise

SECONDS = st.lists(st.floats(1e-4, 10), min_size=2, max_size=100)


@given(SECONDS, st.floats(0.1, 10))
def test_an_error_is_a_share_and_does_not_know_units(samples: list[float], unit: float) -> None:
    assert math.isclose(noise.error(samples), noise.error([unit * value for value in samples]), rel_tol=1e-6)
    assert noise.error(samples) >= noise.LEAST


def test_drift_counts_as_noise_though_neighbours_agree() -> None:
    level, drifts = [1.0, 1.1] * 40, [1.0 + i / 40 for i in range(80)]
    assert noise.error(drifts) > 5 * noise.error(level)


def test_more_samples_of_the_same_spread_are_surer() -> None:
    few = [1.0, 1.4]
    assert noise.error(few) > noise.error(few * 4)


def test_one_sample_says_little() -> None:
    assert noise.error([1.0]) == noise.error([]) == noise.ONE_SAMPLE


@given(st.floats(0.1, 10), st.floats(0.1, 10), st.floats(0.01, 1))
def test_a_chance_is_even_at_the_limit_and_grows_with_the_distance(value: float, limit: float, off: float) -> None:
    chance = noise.likely(value, limit, off)
    assert 1 - noise.CERTAIN <= chance <= noise.CERTAIN
    assert (chance >= 0.5) == (value >= limit)
    assert noise.likely(value * 1.1, limit, off) >= chance
