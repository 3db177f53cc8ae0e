import dataclasses
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from attribute.test_attribute import EVENTS, epoch
from attribute.tracks import MS, Script, loader, make_track
from stoker.attribute import attribute
from stoker.attribute.gauges import growth_bytes_per_s
from stoker.attribute.live import LOST_S, Fold
from stoker.attribute.loop import Loop
from stoker.attribute.series import MOST, Series
from stoker.attribute.timeline import decode_events, segments
from stoker.predict.remaining import remaining
from stoker.records import Kind, Live, LiveEpoch, Meter, News, Odd, Piece, Pulse

S = 1000 * MS
GIB = 1 << 30


def meter(time_ns: int, *pids: int, size: int = GIB, free: int | None = 8 * GIB) -> Meter:
    names = [str(pid) for pid in pids]
    sizes = dict.fromkeys(names, size)
    return Meter(time_ns, dict.fromkeys(names, 1.0), sizes, sizes, 0, free, *(None,) * 8)


def news(*pieces: Piece, meters: tuple[Meter, ...] = (), over: bool = False, quiet_s: float = 0.0) -> News:
    return News(pieces, meters, over, 0 if over else None, None, quiet_s)


def main(script: Script, **more: object) -> Piece:
    times, codes = zip(*script.events, strict=True) if script.events else ((), ())
    piece = Piece("process-1-1", 1, 1, times_ns=times, codes=codes, loaders=(loader(length=10),))
    return dataclasses.replace(piece, **more)  # type: ignore[arg-type]


def fold() -> Fold:
    return Fold("a-run", ("python", "train.py"), 0.0, 0, None)


def picture(script: Script, **more: object) -> Live:
    one = fold()
    one.take(news(main(script, **more)))
    return one.picture(script.now)


# ---- the loop --------------------------------------------------------------------------------------------


@given(EVENTS, st.integers(1, 20))
@settings(max_examples=300)
def test_time_is_spent_on_what_the_timeline_says_however_it_comes(events: list[tuple[int, int]], size: int) -> None:
    inside = sorted(((max(min(t, 1000), 0), code) for t, code in events), key=lambda event: event[0])
    track = make_track(inside, 0, 1000)
    wanted: Counter[object] = Counter()
    for segment in segments(track, decode_events(track)):
        wanted[segment.kind] += segment.end_ns - segment.start_ns
    loop = Loop(0)
    loop._began = True
    for at in range(0, len(inside), size):
        part = inside[at : at + size]
        loop.take([t for t, _ in part], [code for _, code in part])
    if loop._cursor_ns < 1000:
        loop._spend(1000)
    spent: Counter[object] = Counter()
    for _, counted in loop._seconds:
        for (kind, _, _), ns in counted.items():
            spent[kind] += ns
    assert +spent == +wanted


def test_steps_epochs_and_waits_are_those_of_the_attribution() -> None:
    script = Script().own(500)
    for _ in range(3):
        epoch(script, 10).own(20)
    live = picture(script)
    seen = attribute(script.track([loader(length=10)]))
    assert live.steps == len(seen.steps) == 30
    assert [one.batches for one in live.epochs] == [10, 10, 10]
    assert [one.first_batch_s for one in live.epochs] == pytest.approx([p.first_batch_s for p in seen.passes])
    assert [one.wait_s for one in live.epochs] == pytest.approx([p.wait_s for p in seen.passes])
    starts = [one.start_ns for one in seen.passes]
    assert [one.whole_s for one in live.epochs[:-1]] == pytest.approx([(b - a) / 1e9 for a, b in pairwise(starts)])
    assert live.step_s == pytest.approx(0.012)
    assert live.epochs[-1].is_over


def test_validation_and_checkpoints_are_no_part_of_a_step() -> None:
    script = Script()
    script.span(Kind.ITER, 5, 1)
    for i in range(20):
        script.step()
        if i % 5 == 4:
            script.span(Kind.ITER, 1, 2)
            for _ in range(3):
                script.span(Kind.NEXT, 50, 2).span(Kind.FORWARD, 50)
            script.exhausted(1, 2).span(Kind.SAVE, 400)
    live = picture(script, loaders=(loader(1, 20), loader(2, 3)))
    assert live.step_s == pytest.approx(0.012)
    assert live.steps == 20
    assert [one.length for one in live.epochs] == [20]
    shares = {phase.name: phase.share for phase in live.phases}
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["checkpoint"] > shares["validation"] > shares["data_wait"]


def test_a_teacher_is_part_of_a_step_and_a_validation_after_it_is_not() -> None:
    script = Script().span(Kind.ITER, 5, 1)
    for i in range(20):
        script.span(Kind.NEXT, 2, 1).begin(Kind.NO_GRAD).span(Kind.FORWARD, 6).end(Kind.NO_GRAD)
        script.span(Kind.FORWARD, 3).span(Kind.BACKWARD, 4).span(Kind.OPTIMIZER, 1, 1)
        if i == 9:
            script.begin(Kind.NO_GRAD).span(Kind.FORWARD, 16).end(Kind.NO_GRAD)
    live = picture(script, loaders=(loader(1, 20),))
    seconds = {phase.name: phase.seconds for phase in live.phases}
    assert seconds["validation"] == pytest.approx(0.016)
    assert seconds["forward"] == pytest.approx(
        20 * 0.009, abs=0.010
    )  # what came before the first backward was start-up


def test_a_loop_without_a_loader_is_counted_by_its_optimizer() -> None:
    script = Script()
    for _ in range(12):
        script.own(4).span(Kind.FORWARD, 3).span(Kind.BACKWARD, 2).span(Kind.OPTIMIZER, 1, 1)
    live = picture(script, loaders=())
    assert live.steps == 12
    assert live.step_s == pytest.approx(0.010)
    assert live.epochs == ()


def test_a_wait_that_goes_on_counts_already() -> None:
    script = Script()
    script.span(Kind.ITER, 1, 1)
    for _ in range(5):
        script.step()
    script.begin(Kind.NEXT, 1)
    one = fold()
    one.take(news(main(script)))
    live = one.picture(script.now + 20 * S)
    assert live.phase == "data_wait"
    assert live.phase_s == pytest.approx(20)
    assert live.idle_s == pytest.approx(20, rel=0.01)
    assert live.wait_share is not None
    assert live.wait_share > 0.9


def test_what_came_before_training_is_not_what_the_loop_is_like() -> None:
    script = Script().own(25_000)
    epoch(script, 10)
    live = picture(script)
    shares = {phase.name: phase.share for phase in live.phases}
    assert shares["other"] < 0.3


# ---- workers, device, memory -----------------------------------------------------------------------------


def worker(pid: int, number: int, *, closed: bool = False) -> Piece:
    return Piece(f"process-{pid}-1", pid, 2, worker=number, loader=1, is_closed=closed)


def half_an_epoch() -> Script:
    script = Script()
    script.span(Kind.ITER, 1, 1)
    for _ in range(5):
        script.step()
    return script


def watched(*readings: tuple[int, ...], closed: tuple[int, ...] = ()) -> Live:
    one = fold()
    pieces = [worker(10, 0), worker(11, 1)]
    one.take(news(main(half_an_epoch(), loaders=(loader(workers=2),)), *pieces))
    for i, pids in enumerate(readings, 1):
        farewells = [Piece(f"process-{pid}-1", pid, is_closed=True) for pid in closed]
        one.take(news(*farewells, meters=(meter(i * S, *pids),)))
    return one.picture(len(readings) * S)


def test_workers_that_are_there_are_alive() -> None:
    live = watched((1, 10, 11), (1, 10, 11))
    assert (live.workers.alive, live.workers.wanted, live.workers.gone) == (2, 2, ())
    assert [(one.role, one.number) for one in live.processes] == [("main", None), ("worker", 0), ("worker", 1)]


def test_a_worker_that_vanishes_has_died() -> None:
    live = watched((1, 10, 11), (1, 10), (1, 10))
    assert (live.workers.alive, live.workers.gone) == (1, (11,))


@pytest.mark.parametrize(
    ("readings", "closed"),
    [
        pytest.param([(1, 10, 11), (1, 10), (1, 10)], (11,), id="it said goodbye"),
        pytest.param([(1, 10, 11), (1, 10)], (), id="seen once only: it may be ending"),
        pytest.param([(1, 10, 11), (), ()], (), id="its parent is gone too"),
    ],
)
def test_a_worker_that_ends_has_not_died(readings: list[tuple[int, ...]], closed: tuple[int, ...]) -> None:
    assert watched(*readings, closed=closed).workers.gone == ()


def test_forked_pages_are_counted_once() -> None:
    reading = meter(S, 1, 10)
    reading = dataclasses.replace(reading, private_bytes={"1": GIB // 8, "10": GIB // 8})
    one = fold()
    one.take(news(main(half_an_epoch()), worker(10, 0), meters=(reading,)))
    live = one.picture(S)
    assert live.memory is not None
    assert live.memory.used_bytes == GIB + GIB // 8


def test_the_device_is_as_busy_as_it_says() -> None:
    beats = tuple(Pulse(i * S, "sim", i * 0.6, None, None, None) for i in range(1, 8))
    live = picture(half_an_epoch(), pulses=beats)
    assert live.device is not None
    assert live.device.name == "sim"
    assert live.device.busy_share == pytest.approx(0.6)


def test_graphs_of_warm_up_are_not_counted() -> None:
    one = fold()
    one.take(news(main(half_an_epoch(), pulses=(Pulse(S, None, None, None, 3, 2.0),))))
    script = Script()
    script.span(Kind.ITER, 1, 1)
    for _ in range(30):
        script.step()
    one.take(news(main(script, pulses=(Pulse(2 * S, None, None, None, 4, 2.0),))))
    assert one.picture(2 * S).graphs_lately == 0
    one.take(news(Piece("process-1-1", 1, pulses=(Pulse(3 * S, None, None, None, 9, 8.0),))))
    live = one.picture(3 * S)
    assert live.graphs_lately == 5
    assert live.compile_share == pytest.approx(0.1)
    assert one.picture(300 * S).graphs_lately == 0


@given(
    start=st.integers(GIB, 8 * GIB),
    rate=st.integers(2 << 20, 64 << 20),
    noise=st.lists(st.integers(-(8 << 20), 8 << 20), min_size=120, max_size=120),
)
def test_growth_is_measured_through_noise(start: int, rate: int, noise: list[int]) -> None:
    points = [(i * S, start + i * rate + wobble) for i, wobble in enumerate(noise)]
    found = growth_bytes_per_s(points)
    if found is None:
        assert rate * 80 < 0.021 * start  # less than what is told from noise
    else:
        assert found == pytest.approx(rate, rel=0.25)


@given(start=st.integers(GIB, 8 * GIB), noise=st.lists(st.integers(-(8 << 20), 8 << 20), min_size=9, max_size=120))
def test_noise_is_not_growth(start: int, noise: list[int]) -> None:
    assert growth_bytes_per_s([(i * S, start + wobble) for i, wobble in enumerate(noise)]) is None


def test_one_step_up_is_not_growth() -> None:
    assert growth_bytes_per_s([(i * S, GIB if i < 60 else 3 * GIB) for i in range(120)]) is None


# ---- the whole run ---------------------------------------------------------------------------------------


def test_a_run_that_says_nothing_is_lost_and_one_that_ended_is_not() -> None:
    one = fold()
    one.take(news(main(half_an_epoch()), quiet_s=LOST_S + 1))
    assert one.picture(900 * S).state == "lost"
    assert one.picture(900 * S).elapsed_s < 1
    one.take(news(over=True, quiet_s=LOST_S + 1))
    assert one.picture(900 * S).state == "ended"


def test_a_value_that_is_no_number_is_kept_with_its_age() -> None:
    live = picture(half_an_epoch(), odd=(Odd(10 * MS, "nan", "train.py", 7),))
    assert live.odd == Odd(10 * MS, "nan", "train.py", 7)
    assert live.odd_ago_s == pytest.approx(0.051, abs=0.02)


@given(st.lists(st.integers(0, 5_000), min_size=1, max_size=300))
@example([0, 1])
@settings(max_examples=50)
def test_a_course_stays_short_and_loses_no_step(gaps_s: list[int]) -> None:
    series = Series(0)
    now = 0
    for gap in gaps_s:
        now += gap * S
        series.step(now)
        series.spend(now, gap * S, waits=True)
    moments = list(series.moments(Series(0)))
    assert len(moments) <= MOST
    width_s = 2 * moments[0].time_s
    counted = sum(m.steps_per_s * width_s for m in moments if m.steps_per_s is not None)
    assert counted == pytest.approx(len(gaps_s))


# ---- what is left ----------------------------------------------------------------------------------------


def one_epoch(number: int, batches: int, *, whole_s: float | None = None, length: int | None = 100) -> LiveEpoch:
    return LiveEpoch(number, batches, length, 1.0, 10.0, 0.5, whole_s, whole_s is not None)


def test_the_rest_of_a_run_is_its_steps_and_what_follows_each_epoch() -> None:
    done = [one_epoch(1, 100, whole_s=15.0), one_epoch(2, 100, whole_s=15.0)]
    left = remaining([*done, one_epoch(3, 40)], 0.1, planned=5)
    assert left is not None
    assert left.epoch_s == pytest.approx(6.0)
    assert left.run_s == pytest.approx(6.0 + 4.0 + 2 * 15.0)


def test_what_is_not_known_is_not_forecast() -> None:
    assert remaining([], 0.1, 3) is None
    assert remaining([one_epoch(1, 40)], None, 3) is None
    left = remaining([one_epoch(1, 40, length=None)], 0.1, 3)
    assert left is not None
    assert (left.epoch_s, left.run_s) == (None, None)
    left = remaining([one_epoch(1, 40)], 0.1, None)
    assert left is not None
    assert left.epoch_s == pytest.approx(6.0)
    assert left.run_s is None
