import random

import pytest

from attribute.tracks import Script, loader
from stoker.attribute import attribute
from stoker.predict import epoch_parts, forecast, settled
from stoker.records import Cut, Kind


def cycle(script: Script, steps: int, *, valid: int, first: float = 20) -> None:
    """An epoch as a script goes through it: train, validate, save."""
    script.span(Kind.ITER, 5, 1)
    for i in range(steps):
        script.step(wait=first if i == 0 else 2)
    script.exhausted(0, 1).own(4)
    script.begin(Kind.NO_GRAD).span(Kind.ITER, 1, 2)
    for _ in range(valid):
        script.span(Kind.NEXT, 2, 2).span(Kind.FORWARD, 3)
    script.exhausted(0, 2).end(Kind.NO_GRAD)
    script.span(Kind.SAVE, 30)


LOADERS = [loader(1, length=200), loader(2, length=50)]


def test_short_epochs_forecast_what_whole_ones_take() -> None:
    whole, short = Script().own(1000), Script().own(1000)
    cuts = []
    for _ in range(3):
        cycle(whole, 200, valid=50)
        cycle(short, 30, valid=10)
        cuts += [Cut(1, 30, 200, short.now), Cut(2, 10, 50, short.now)]
    # 5 + 20 first batch; 200 steps; 4 between; 1 + 50 times 5 validation; 30 save
    true_s = (5 + 20 + 10 + 199 * 12 + 4 + 1 + 50 * 5 + 30) / 1000
    whole_forecast = forecast(attribute(whole.track(LOADERS)), epochs=3)
    short_forecast = forecast(attribute(short.track(LOADERS, cuts)), epochs=3)
    assert whole_forecast is not None
    assert short_forecast is not None
    assert whole_forecast.epoch_s == pytest.approx(true_s, rel=0.01)
    assert short_forecast.epoch_s == pytest.approx(true_s, rel=0.01)
    assert short_forecast.low_s <= short_forecast.epoch_s * 0.96  # as far as runs of one script differ …
    assert short_forecast.high_s >= short_forecast.epoch_s * 1.04  # … though all of these steps are alike
    assert short_forecast.run_s == pytest.approx(1 + 3 * true_s, rel=0.01)


def test_start_up_and_warm_up_are_not_multiplied_into_the_epoch() -> None:
    script = Script().own(15_000).span(Kind.ITER, 5, 1)
    for i in range(60):
        script.step(wait=900 if i == 0 else 100 if i < 6 else 2)
    script.exhausted(0)
    seen = attribute(script.track([loader(1, length=10_000)], [Cut(1, 60, 10_000, script.now)]))
    assert seen.steady is not None
    assert seen.steady.warmup_steps == 6
    parts = epoch_parts(seen)
    assert parts is not None
    assert parts.total_s == pytest.approx(10_000 * 0.012, rel=0.02)


def test_what_warm_up_takes_longer_is_in_the_run_once() -> None:
    script = Script().own(1000).span(Kind.ITER, 5, 1)
    for i in range(100):
        script.step(wait=500 if 0 < i < 10 else 2)
    script.exhausted(0)
    seen = attribute(script.track([loader(1, length=100)]))
    once, five_times = forecast(seen, epochs=1), forecast(seen, epochs=5)
    assert once is not None
    assert five_times is not None
    assert once.run_s == pytest.approx(script.now / 1e9, rel=0.01)
    assert five_times.run_s == pytest.approx(script.now / 1e9 + 4 * (0.005 + 100 * 0.012), rel=0.01)


def test_a_first_epoch_that_fills_a_cache_is_in_the_run_once_and_in_no_other_epoch() -> None:
    script = Script().own(1000)
    for wait, steps in ((20, 200), (2, 60)):  # the second is not over yet, so most steps that were seen are slow
        script.span(Kind.ITER, 5, 1)
        for _ in range(steps):
            script.step(wait=wait)
        if steps == 200:
            script.exhausted(0)
    found = forecast(attribute(script.track([loader(1, length=200)])), epochs=10)
    assert found is not None
    assert found.epoch_s == pytest.approx(0.005 + 200 * 0.012, rel=0.01)
    assert found.high_s < 1.1 * found.epoch_s
    assert found.run_s == pytest.approx(1 + 0.005 + 200 * 0.030 + 9 * found.epoch_s, rel=0.01)


def test_a_first_epoch_that_differs_by_chance_is_an_epoch_like_others() -> None:
    script, draw = Script(), random.Random(0)
    for steps in (60, 30):
        script.span(Kind.ITER, 5, 1)
        for _ in range(steps):
            script.step(wait=draw.expovariate(1 / 30))
        script.exhausted(0)
    seen = attribute(script.track([loader(1, length=60)]))
    assert settled(seen) is seen


def test_validation_every_few_steps_grows_with_the_epoch() -> None:
    script = Script().span(Kind.ITER, 5, 1)
    for i in range(40):
        script.step()
        if i % 10 == 9:
            script.begin(Kind.NO_GRAD).span(Kind.FORWARD, 50).end(Kind.NO_GRAD)
    script.exhausted(0)
    parts = epoch_parts(attribute(script.track([loader(1, length=400)], [Cut(1, 40, 400, script.now)])))
    assert parts is not None
    assert parts.validation_s == pytest.approx(40 * 0.050)


def test_an_epoch_of_unknown_length_has_no_forecast_unless_one_came_to_its_end() -> None:
    script, loaders = Script(), [loader(1, length=None), loader(2)]
    cycle(script, 30, valid=2)
    assert forecast(attribute(script.track(loaders, [Cut(1, 30, None, script.now)])), epochs=None) is None
    found = forecast(attribute(script.track(loaders)), epochs=None)
    assert found is not None
    assert found.epoch_s == pytest.approx((5 + 20 + 10 + 29 * 12 + 4 + 1 + 2 * 5 + 30) / 1000, rel=0.1)


def test_the_same_records_give_the_same_interval() -> None:
    script = Script()
    cycle(script, 50, valid=2)
    seen = attribute(script.track(LOADERS))
    assert forecast(seen, 1) == forecast(seen, 1)


def test_the_interval_is_wider_where_the_host_took_a_share_of_the_cores() -> None:
    script = Script()
    cycle(script, 50, valid=2)
    seen = attribute(script.track(LOADERS))
    quiet, robbed = forecast(seen, 1), forecast(seen, 1, 0.2)
    assert quiet is not None
    assert robbed is not None
    assert robbed.epoch_s == quiet.epoch_s
    assert robbed.low_s <= 0.8 * robbed.epoch_s < quiet.low_s
    assert robbed.high_s >= 1.2 * robbed.epoch_s > quiet.high_s


def test_batches_that_experiments_took_from_a_cold_first_epoch_would_have_taken_as_long_as_its_others() -> None:
    script = Script().own(1000)
    for wait, steps in ((20, 120), (2, 200), (2, 200)):  # of the first epoch 80 batches went to experiments
        script.span(Kind.ITER, 5, 1)
        for _ in range(steps):
            script.step(wait=wait)
        script.exhausted(0)
    found = forecast(attribute(script.track([loader(1, length=200)])), epochs=10)
    assert found is not None
    assert found.run_s == pytest.approx(1 + 0.005 + 200 * 0.030 + 9 * (0.005 + 200 * 0.012), rel=0.01)


def test_a_loop_over_steps_ends_in_the_middle_of_an_epoch() -> None:
    script = Script().own(1000).span(Kind.ITER, 5, 1)
    for _ in range(100):
        script.step()
    seen = attribute(script.track([loader(1, length=200)]))
    found = forecast(seen, epochs=2, steps=300)
    assert found is not None
    assert found.run_s == pytest.approx(1 + 1.5 * found.epoch_s, rel=0.01)


def test_a_first_validation_that_compiles_is_in_the_run_once_and_in_no_other_epoch() -> None:
    script = Script().own(1000)
    for first_ms in (2000, 100, 100):
        script.span(Kind.ITER, 5, 1)
        for _ in range(50):
            script.step()
        script.exhausted(0)
        script.span(Kind.ITER, 5, 2)
        for i in range(4):
            script.span(Kind.NEXT, 1, 2).span(Kind.FORWARD, first_ms if not i else 100)
        script.exhausted(0, 2)
    found = forecast(attribute(script.track([loader(1, length=50), loader(2, length=4)])), epochs=3)
    assert found is not None
    assert found.epoch_s == pytest.approx(50 * 0.012 + 0.4, rel=0.05)
    assert found.run_s == pytest.approx(script.now / 1e9, rel=0.02)
