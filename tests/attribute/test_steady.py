import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.attribute import steady
from stoker.records import Step


def steps(seconds: list[float], epoch_length: int = 10_000) -> list[Step]:
    return [Step(0, 0, i // epoch_length, i % epoch_length == 0, s, {}) for i, s in enumerate(seconds)]


def noisy(level: float, count: int, seed: int = 0, noise: float = 0.1) -> list[float]:
    draw = random.Random(seed)
    return [level * (1 + draw.gauss(0, noise)) for _ in range(count)]


@pytest.mark.parametrize("warm", [1, 5, 20])
def test_warm_up_is_found_where_it_ends(warm: int) -> None:
    assert abs(steady.change_point(noisy(0.05, warm) + noisy(0.01, 100, 1)) - warm) <= 2


@given(st.integers(0, 1000))
def test_noise_alone_is_no_warm_up(seed: int) -> None:
    assert steady.change_point(noisy(0.01, 200, seed, noise=0.15)) < 100


def test_noise_alone_is_rarely_taken_for_warm_up() -> None:
    found = [steady.change_point(noisy(0.01, 200, seed, noise=0.15)) for seed in range(200)]
    assert sum(1 for k in found if k) <= 10


def test_one_slow_step_is_no_warm_up_of_many() -> None:
    times = noisy(0.01, 100)
    times[30] = 1.0
    assert steady.change_point(times) <= 1


def test_batches_that_were_ready_beforehand_are_not_steady() -> None:
    times = [0.001] * 9 + noisy(0.02, 60)
    found = steady.find(steps(times), head=8)
    assert found is not None
    assert found.steps[0] == 9
    assert found.mean_step_s == pytest.approx(0.02, rel=0.1)


@given(st.integers(2, 16), st.integers(1, 4), st.data())
def test_batches_that_come_in_bursts_are_counted_by_whole_rounds(makers: int, rounds: int, data: st.DataObject) -> None:
    """Wherever the run begins and ends: each round is one long wait and as many batches as there are workers."""
    more, phase = data.draw(st.integers(0, makers - 1)), data.draw(st.integers(0, makers - 1))
    count = rounds * makers + more
    times = [0.02] + [5.0 if (i + phase) % makers == 0 else 0.01 for i in range(count)]
    found = steady.find(steps(times), head=0, makers=makers)
    assert found is not None
    mean = (5.0 + 0.01 * (makers - 1)) / makers
    assert found.mean_step_s == pytest.approx(mean) or len(found.steps) < makers


def test_spikes_have_their_period() -> None:
    times = [0.1 if i % 20 == 19 else 0.01 for i in range(200)]
    found = steady.find(steps(times), head=0)
    assert found is not None
    assert found.spikes is not None
    assert (found.spikes.count, found.spikes.period) == (10, 20)
    assert found.spikes.seconds == pytest.approx(0.1)


def test_spikes_at_random_have_none() -> None:
    times = noisy(0.01, 300)
    for place in (17, 90, 101, 260):
        times[place] = 0.2
    found = steady.find(steps(times), head=0)
    assert found is not None
    assert found.spikes is not None
    assert found.spikes.period is None


def test_drift_is_how_much_steps_grew() -> None:
    found = steady.find(steps([0.01 * (1 + i / 400) for i in range(200)]), head=0)
    assert found is not None
    assert found.drift_share is not None
    assert 0.2 < found.drift_share < 0.5


def test_quantiles_interpolate() -> None:
    assert steady.quantile([1, 2, 3, 4], 0.5) == 2.5
    assert steady.quantile([5], 0.99) == 5


def after_breaks(breaks: int, head: int, between: int = 20) -> tuple[list[Step], list[int]]:
    """A loop that waits a second for each batch. In each break workers make `head` of them, which then come at once."""
    quick = [*[1.0] * between, *([0.01] * head + [1.0] * between) * breaks]
    starts = [round(sum(quick[:i]) * 1e9) for i in range(len(quick))]
    found = [Step(start, 0, 0, i == 0, s, {}) for i, (start, s) in enumerate(zip(starts, quick, strict=True))]
    return found, [starts[between + i * (between + head)] for i in range(breaks)]


@given(st.integers(0, 3), st.integers(0, 4))
def test_batches_that_workers_made_while_the_loop_stood_still_do_not_count_as_quick(breaks: int, head: int) -> None:
    some, breaks_ns = after_breaks(breaks, head)
    found = steady.find(some, head, 1, breaks_ns)
    assert found is not None
    assert found.mean_step_s == pytest.approx(1.0)
    assert found.step_s.p99 == pytest.approx(1.0)


def test_where_nothing_else_is_left_they_count_all_the_same() -> None:
    some, breaks_ns = after_breaks(2, 16, between=3)
    found = steady.find(some, 16, 1, breaks_ns)
    assert found is not None
    assert len(found.steps) >= 8
