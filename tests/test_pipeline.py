from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.errors import UsageError
from stoker.predict.pipeline import STEPS, Pipeline, epoch_step_s, step_s
from stoker.predict.whatif import changed
from stoker.records import LoaderFacts

FACTS = LoaderFacts(1, "DataLoader", "D", 100, 1000, 10, 2, 2, False, False, False, None, "", 0)


def pipeline(**changes: object) -> Pipeline:
    plain = Pipeline(workers=2, prefetch=2, cores=2, work_s=(0.01,), wait_s=(0.0,), loop_cpu_s=0.0, loop_wait_s=0.005)
    return replace(plain, **changes)  # type: ignore[arg-type]


def test_without_workers_a_step_is_the_sum_of_its_parts() -> None:
    assert step_s(pipeline(workers=0, wait_s=(0.003,), loop_cpu_s=0.002)) == pytest.approx(0.02)


def test_with_a_worker_the_slower_half_decides() -> None:
    assert step_s(pipeline(workers=1)) == pytest.approx(0.01, rel=0.02)
    assert step_s(pipeline(workers=1, work_s=(0.001,))) == pytest.approx(0.005, rel=0.02)


def test_workers_that_work_share_the_cores_and_workers_that_wait_do_not() -> None:
    work = [step_s(pipeline(workers=n, loop_wait_s=0.0)) for n in (1, 2, 4)]
    assert work == [pytest.approx(t, rel=0.03) for t in (0.01, 0.005, 0.005)]
    wait = [step_s(pipeline(workers=n, loop_wait_s=0.0, work_s=(0.0,), wait_s=(0.01,))) for n in (1, 2, 4)]
    assert wait == [pytest.approx(t, rel=0.03) for t in (0.01, 0.005, 0.0025)]


def test_the_loops_own_work_competes_for_the_cores() -> None:
    assert step_s(pipeline(cores=1, workers=1, loop_cpu_s=0.01, loop_wait_s=0.0)) == pytest.approx(0.02, rel=0.03)


def test_no_loop_is_faster_than_its_device_whether_it_waits_for_it_or_not() -> None:
    assert step_s(pipeline(workers=4, loop_wait_s=0.0, device_s=0.02)) == pytest.approx(0.02)
    assert changed(pipeline(device_s=0.02), FACTS, {"batch_size": 20}, device_speed=4).device_s == pytest.approx(0.01)


def test_threads_of_a_library_leave_less_for_workers() -> None:
    alone = Pipeline(0, 2, 2, (1.5,), (0.0,), loop_cpu_s=0.0, loop_wait_s=0.04, spread=1.5)
    assert step_s(alone) == pytest.approx(1.04)
    assert step_s(replace(alone, workers=1)) == pytest.approx(1.0, rel=0.05)
    assert step_s(replace(alone, workers=8)) == pytest.approx(0.75, rel=0.05)


def test_many_tensors_make_workers_slower_than_none() -> None:
    alone = Pipeline(0, 2, 2, (0.25,), (0.0,), loop_cpu_s=0.03, loop_wait_s=0.03)
    many = replace(alone, tensors=768)
    assert step_s(many) == step_s(alone)
    assert step_s(replace(alone, workers=2)) < 0.6 * step_s(alone)
    assert step_s(replace(many, workers=2)) > 1.2 * step_s(many)


def test_strangers_take_their_share_and_more_processes_get_more() -> None:
    alone = pipeline(workers=0, loop_wait_s=0.0)
    crowded = replace(alone, strangers=3.0)  # a half of a core for a process of ours
    assert step_s(crowded) == pytest.approx(2 * step_s(alone))
    assert 1.3 < step_s(crowded) / step_s(replace(crowded, workers=2)) < 2.0


def test_prefetch_hides_a_slow_batch_among_fast_ones() -> None:
    uneven = pipeline(workers=1, work_s=(0.001,) * 9 + (0.03,), wait_s=(0.0,) * 10, loop_wait_s=0.006)
    assert step_s(replace(uneven, prefetch=16)) < step_s(replace(uneven, prefetch=1))


def test_an_epoch_that_is_shorter_than_its_queue_is_one_wait_and_what_the_cores_can_do() -> None:
    short = pipeline(work_s=(0.2,), wait_s=(1.0,), loop_wait_s=0.0, epoch_steps=18, persistent=True)
    two, all_at_once, more = (epoch_step_s(replace(short, workers=n)) * 18 for n in (2, 18, 64))
    assert two == pytest.approx(9 * 1.2, rel=0.01)  # nine rounds
    assert all_at_once == more == pytest.approx(1.0 + 18 * 0.2 / 2, rel=0.01)  # nobody makes batches that nobody wants
    in_turns = epoch_step_s(replace(short, workers=18, pieces=4)) * 18
    assert 18 * 0.2 / 2 < in_turns < 0.8 * all_at_once  # some work while others wait
    starting = replace(short, workers=18, persistent=False, worker_start_s=0.1)
    assert epoch_step_s(starting) * 18 == pytest.approx(all_at_once + 1.8)


@pytest.mark.parametrize("pieces", [1, 4])
def test_a_short_epoch_and_a_long_one_are_predicted_alike(pieces: int) -> None:
    short = pipeline(work_s=(0.02,), wait_s=(0.05,), epoch_steps=STEPS, pieces=pieces, workers=3)
    long = replace(short, epoch_steps=STEPS + 1)
    assert epoch_step_s(short) == pytest.approx(epoch_step_s(long), rel=0.02)


times = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=5).map(tuple)


@settings(max_examples=40)
@given(
    work=times, workers=st.integers(0, 5), prefetch=st.integers(1, 4), cores=st.integers(1, 8), loop=st.floats(0.001, 1)
)
def test_no_setting_beats_its_ceilings(
    work: tuple[float, ...], workers: int, prefetch: int, cores: int, loop: float
) -> None:
    one = Pipeline(workers, prefetch, cores, work, (0.0,) * len(work), 0.0, loop)
    took = step_s(one, steps=80)
    assert took >= loop * 0.999
    assert took == step_s(one, steps=80)


def test_a_larger_batch_takes_more_of_everything() -> None:
    other = changed(pipeline(batch_bytes=100, main_bytes=10, worker_bytes=7), FACTS, {"batch_size": 20}, device_speed=2)
    assert other.work_s == (0.02,)
    assert other.loop_wait_s == pytest.approx(0.005)
    assert other.memory_bytes == 10 + 2 * 7 + 5 * 200


def test_a_knob_that_is_not_simulated_is_refused() -> None:
    with pytest.raises(
        UsageError, match="amp cannot be predicted; num_workers, prefetch_factor, batch_size, persistent_workers can"
    ):
        changed(pipeline(), FACTS, {"amp": "bf16"})
