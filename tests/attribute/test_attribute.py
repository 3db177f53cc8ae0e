import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attribute.tracks import MS, Script, loader, make_track
from stoker.attribute import attribute
from stoker.attribute.timeline import decode_events, segments
from stoker.records import ARG, Attribution, Cut, Kind, Line, LoaderFacts
from stoker.records.observed import OWN

CODES = st.builds(
    lambda kind, ends, argument: kind << 1 | ends | argument << ARG,
    st.sampled_from(list(Kind)),
    st.booleans(),
    st.integers(0, 3),
)
EVENTS = st.lists(st.tuples(st.integers(-50, 1_050), CODES | st.integers(0, 1 << 20)), max_size=80)


def seconds(seen: Attribution) -> dict[str, float]:
    return {phase.name: phase.seconds for phase in seen.phases if phase.seconds}


@given(EVENTS, st.lists(st.tuples(st.integers(0, 1_000), st.integers(0, 1)), max_size=20))
@settings(max_examples=400, deadline=None)
def test_attribution_sums_to_one_for_any_sequence_of_events(
    events: list[tuple[int, int]], samples: list[tuple[int, int]]
) -> None:
    lines = [Line("train.py", n, "main", "x") for n in range(2)]
    loaders = [loader(n, length=5) for n in range(3)]
    track = make_track(events, 0, 1_000, loaders, samples=sorted(samples), lines=lines)
    seen = attribute(track)
    probes = 1_000 / 1e9 - seen.wall_s
    assert probes >= -1e-12  # only Stoker's own experiments may be missing from the wall
    if seen.wall_s:
        assert math.fsum(phase.share for phase in seen.phases) == pytest.approx(1, abs=1e-9)
    assert math.fsum(phase.seconds for phase in seen.phases) == pytest.approx(seen.wall_s, abs=1e-12)
    assert all(phase.seconds >= 0 for phase in seen.phases)
    assert 0 <= seen.unaccounted_share <= 1 + 1e-9
    assert sum(line.share for line in seen.hot_lines) <= 1 + 1e-9


def rollouts(mode: int, before: int, iterations: int = 4) -> Script:
    """So many steps, then in turns a section in which the model acts, and a few steps on what came of it."""
    script = Script().own(10)
    for _ in range(before):
        script.span(Kind.FORWARD, 3).span(Kind.BACKWARD, 4).span(Kind.OPTIMIZER, 1, 1)
    for _ in range(iterations):
        script.begin(Kind.NO_GRAD)
        for _ in range(3):
            script.span(Kind.FORWARD, 2, mode).own(20)
        script.end(Kind.NO_GRAD)
        for _ in range(4):
            script.span(Kind.FORWARD, 3).span(Kind.BACKWARD, 4).span(Kind.OPTIMIZER, 1, 1)
    return script


def test_a_model_that_makes_its_own_data_does_not_validate() -> None:
    acts = seconds(attribute(rollouts(mode=0, before=0).track()))
    assert "validation" not in acts
    assert acts["data_wait"] == pytest.approx(4 * 3 * 0.020)


@pytest.mark.parametrize(("mode", "before"), [(1, 0), (0, 2)])
def test_who_evaluates_in_eval_mode_or_after_some_training_validates(mode: int, before: int) -> None:
    assert seconds(attribute(rollouts(mode, before).track()))["validation"] > 0


def test_what_is_written_and_synced_without_a_step_between_is_one_checkpoint() -> None:
    script = Script().span(Kind.ITER, 1, 1)
    for _ in range(3):
        script.step()
        script.span(Kind.SAVE, 30).own(4).span(Kind.SAVE, 10).own(2)
    seen = attribute(script.exhausted(0).track([loader(length=3)]))
    assert seen.checkpoint_s == pytest.approx((0.040,) * 3)
    assert seconds(seen)["checkpoint"] == pytest.approx(3 * 0.044)
    assert seconds(seen)["other"] == pytest.approx(3 * 0.003)


def test_lines_of_stokers_own_are_none_of_the_users() -> None:
    lines = [Line("train.py", 1, "main", "x"), Line(OWN, 2, "look", "x")]
    script = Script().span(Kind.ITER, 1, 1).step().own(50)
    seen = attribute(script.track([loader(length=1)], samples=[(20 * MS, 0), (30 * MS, 1)], lines=lines))
    assert [line.file for line in seen.hot_lines] == ["train.py"]


@given(EVENTS)
@settings(max_examples=300, deadline=None)
def test_segments_tile_the_track_without_gap_or_overlap(events: list[tuple[int, int]]) -> None:
    track = make_track(events, 0, 1_000)
    row = segments(track, decode_events(track))
    assert row[0].start_ns == 0
    assert row[-1].end_ns == 1_000
    assert all(a.end_ns == b.start_ns for a, b in pairwise(row))
    assert all(segment.end_ns > segment.start_ns for segment in row)


def epoch(script: Script, steps: int, number: int = 1) -> Script:
    script.span(Kind.ITER, 5, number)
    for i in range(steps):
        script.step(wait=10 if i == 0 else 2, number=number)
    return script.exhausted(1, number)


def test_a_plain_loop_is_named_in_full() -> None:
    script = epoch(Script().own(100), 10)
    script.begin(Kind.EXIT).own(50)
    seen = attribute(script.track([loader()]))
    assert seconds(seen) == pytest.approx(
        {
            "startup": 0.100,
            "first_batch": 0.015,
            "data_wait": 9 * 0.002 + 0.001,
            "forward": 0.030,
            "loss": 0.010,
            "backward": 0.040,
            "optimizer": 0.010,
            "other": 0.010,
            "shutdown": 0.050,
        }
    )
    assert len(seen.steps) == 10
    assert [step.is_first for step in seen.steps] == [True] + [False] * 9
    assert seen.steps[3].seconds == pytest.approx(0.012)


def test_the_innermost_span_has_the_time() -> None:
    script = Script().span(Kind.ITER, 1, 1)
    for _ in range(3):
        script.span(Kind.NEXT, 1, 1).begin(Kind.FORWARD).own(2).span(Kind.SYNC, 5).own(1).end(Kind.FORWARD)
        script.begin(Kind.BACKWARD).own(1).span(Kind.GC, 2).end(Kind.BACKWARD)
    seen = seconds(attribute(script.exhausted(0).track([loader()])))
    assert seen["sync"] == pytest.approx(0.015)
    assert seen["forward"] == pytest.approx(0.009)
    assert seen["gc"] == pytest.approx(0.006)
    assert seen["backward"] == pytest.approx(0.003)


def test_a_model_inside_a_dataset_is_loading() -> None:
    script = Script().span(Kind.ITER, 1, 1)
    for _ in range(3):
        script.begin(Kind.NEXT, 1).own(1).span(Kind.FORWARD, 4).end(Kind.NEXT, 1)
        script.span(Kind.FORWARD, 2).span(Kind.BACKWARD, 2)
    seen = seconds(attribute(script.exhausted(0).track([loader()])))
    assert seen["forward"] == pytest.approx(0.006)
    assert seen["data_wait"] + seen["first_batch"] == pytest.approx(0.016)


def test_a_pass_without_backward_is_validation_with_all_it_holds() -> None:
    script = epoch(Script().own(10), 10)
    script.own(3).span(Kind.ITER, 1, 2)
    for _ in range(4):
        script.span(Kind.NEXT, 2, 2).span(Kind.COPY, 1).span(Kind.FORWARD, 2).span(Kind.LOG, 1).own(1)
    script.exhausted(1, 2).span(Kind.SAVE, 7)
    seen = attribute(script.track([loader(1), loader(2)]))
    assert seconds(seen)["validation"] == pytest.approx(0.001 + 4 * 0.006 + 0.001)
    assert seconds(seen)["logging"] == pytest.approx(0.004)
    assert seconds(seen)["checkpoint"] == pytest.approx(0.007)
    assert [one.is_train for one in seen.passes] == [True, False]


def test_a_section_without_gradients_is_validation_only_if_a_model_ran_in_it() -> None:
    script = epoch(Script(), 4)
    script.begin(Kind.NO_GRAD).own(5).end(Kind.NO_GRAD)
    script.begin(Kind.NO_GRAD).own(1).span(Kind.FORWARD, 2).own(1).end(Kind.NO_GRAD)
    seen = seconds(attribute(script.track([loader(length=4)])))
    assert seen["validation"] == pytest.approx(0.004)
    assert seen["other"] == pytest.approx(4 * 0.001 + 0.005)


def test_validation_inside_an_epoch_is_not_part_of_the_step() -> None:
    script = Script().span(Kind.ITER, 1, 1)
    for i in range(6):
        script.step()
        if i == 3:
            script.begin(Kind.NO_GRAD).span(Kind.FORWARD, 100).end(Kind.NO_GRAD).span(Kind.SAVE, 50)
    seen = attribute(script.exhausted(0).track([loader(length=6)]))
    assert seen.steps[3].seconds == pytest.approx(0.012)
    assert (seen.steps[3].end_ns - seen.steps[3].start_ns) / MS == pytest.approx(162)


@pytest.mark.parametrize("has_pass", [True, False])
def test_a_wait_for_the_device_right_after_validation_is_validation(has_pass: bool) -> None:
    script = epoch(Script(), 4)
    if has_pass:
        script.span(Kind.ITER, 1, 2).span(Kind.NEXT, 1, 2).span(Kind.FORWARD, 2).exhausted(1, 2)
    else:
        script.begin(Kind.NO_GRAD).own(3).span(Kind.FORWARD, 2).end(Kind.NO_GRAD)
    script.own(1).span(Kind.SYNC, 50).span(Kind.LOG, 2).span(Kind.SYNC, 1)
    epoch(script, 4).span(Kind.SYNC, 7)
    seen = seconds(attribute(script.track([loader(1, 4), loader(2, 1)])))
    assert seen["validation"] == pytest.approx(0.005 + 0.051)
    assert seen["sync"] == pytest.approx(0.007)


def teach(script: Script) -> Script:
    return script.begin(Kind.NO_GRAD).span(Kind.FORWARD, 6).own(1).end(Kind.NO_GRAD)


def test_a_teacher_that_runs_on_every_batch_is_part_of_the_step_and_a_validation_beside_it_is_not() -> None:
    script = Script().span(Kind.ITER, 1, 1)
    for i in range(6):
        teach(script.span(Kind.NEXT, 2, 1))
        script.span(Kind.FORWARD, 3).own(1).span(Kind.BACKWARD, 4).span(Kind.OPTIMIZER, 1, 1).own(1)
        if i == 3:
            teach(script)
    seen = attribute(script.exhausted(0).track([loader(length=6)]))
    assert seconds(seen)["forward"] == pytest.approx(6 * 0.010)
    assert seconds(seen)["validation"] == pytest.approx(0.007)
    assert seen.steps[3].seconds == pytest.approx(0.019)


def test_a_loop_over_batches_of_its_own_before_the_backward_is_validation() -> None:
    script = Script().span(Kind.ITER, 1, 1)
    for _ in range(6):
        script.span(Kind.NEXT, 2, 1).begin(Kind.NO_GRAD).span(Kind.ITER, 1, 2)
        script.span(Kind.NEXT, 1, 2).span(Kind.FORWARD, 5).exhausted(1, 2).end(Kind.NO_GRAD)
        script.span(Kind.FORWARD, 3).span(Kind.BACKWARD, 4).span(Kind.OPTIMIZER, 1, 1)
    seen = seconds(attribute(script.exhausted(0).track([loader(1, 6), loader(2, 1)])))
    assert seen["forward"] == pytest.approx(6 * 0.003)
    assert seen["validation"] == pytest.approx(6 * 0.008)


def test_a_target_network_in_a_loop_without_a_loader_is_part_of_the_step() -> None:
    script = Script().own(5)
    for _ in range(6):
        teach(script).span(Kind.FORWARD, 3).span(Kind.BACKWARD, 4).span(Kind.OPTIMIZER, 1, 1).own(1)
    seen = seconds(attribute(script.track()))
    assert "validation" not in seen or seen["validation"] == 0
    assert seen["forward"] == pytest.approx(6 * 0.010, abs=0.008)  # the first one may be start-up


def test_without_a_loader_the_gap_before_forward_is_data() -> None:
    script = Script().own(20)
    for _ in range(5):
        script.own(6).span(Kind.FORWARD, 3).own(1).span(Kind.BACKWARD, 4).span(Kind.OPTIMIZER, 1, 1)
    seen = attribute(script.track())
    assert len(seen.steps) == 5
    assert seconds(seen)["data_wait"] == pytest.approx(4 * 0.006)
    assert seconds(seen)["startup"] == pytest.approx(0.026)


def test_the_rarest_optimizer_closes_a_step() -> None:
    script = Script()
    for i in range(20):
        script.span(Kind.FORWARD, 1).span(Kind.BACKWARD, 1).span(Kind.OPTIMIZER, 1, 1)
        if i % 5 == 4:
            script.span(Kind.FORWARD, 1).span(Kind.BACKWARD, 1).span(Kind.OPTIMIZER, 1, 2)
    assert len(attribute(script.track()).steps) == 4


def test_two_loaders_that_feed_one_step_both_train() -> None:
    script = Script().span(Kind.ITER, 1, 1).span(Kind.ITER, 1, 2)
    for _ in range(5):
        script.span(Kind.NEXT, 1, 1).span(Kind.NEXT, 2, 2).span(Kind.FORWARD, 3).span(Kind.BACKWARD, 4)
    seen = attribute(script.exhausted(1).track([loader(1), loader(2)]))
    assert [wait.role for wait in seen.loaders] == ["train", "train"]
    assert len(seen.steps) == 5
    assert "validation" not in seconds(seen)


def test_a_loop_that_draws_several_batches_and_then_trains_on_each_trains() -> None:
    script = Script().span(Kind.ITER, 5, 1)
    for _ in range(5):
        script.span(Kind.NEXT, 2, 1).span(Kind.NEXT, 2, 1).span(Kind.NEXT, 2, 1)
        for _ in range(3):
            script.span(Kind.FORWARD, 3).span(Kind.BACKWARD, 4)
        script.span(Kind.OPTIMIZER, 1, 1)
    seen = attribute(script.exhausted(1, 1).track([loader()]))
    assert [one.is_train for one in seen.passes] == [True]
    assert len(seen.steps) == 15


def test_a_validation_pass_left_half_way_is_not_credited_with_the_training_after_it() -> None:
    script = Script().span(Kind.ITER, 5, 1)
    for _ in range(3):
        script.step()
    script.span(Kind.ITER, 5, 2)
    for _ in range(5):
        script.span(Kind.NEXT, 2, 2).span(Kind.FORWARD, 3)
    for _ in range(6):
        script.step()
    seen = attribute(script.exhausted(1, 1).track([loader(), loader(2)]))
    assert [one.is_train for one in seen.passes] == [True, False]


def test_an_experiment_of_stokers_own_is_no_part_of_the_run() -> None:
    script = epoch(Script(), 4)
    plain = attribute(script.track([loader(length=4)]))
    script.span(Kind.PROBE, 500)
    probed = attribute(script.track([loader(length=4)]))
    assert probed.wall_s == pytest.approx(plain.wall_s)
    assert seconds(probed) == pytest.approx(seconds(plain))


def test_an_exception_that_skips_ends_leaves_no_span_open() -> None:
    script = Script().span(Kind.ITER, 1, 1).span(Kind.NEXT, 1, 1).begin(Kind.FORWARD).own(1).begin(Kind.SYNC)
    script.own(1).end(Kind.FORWARD).own(5).span(Kind.BACKWARD, 1)
    seen = seconds(attribute(script.track([loader()])))
    assert seen["forward"] + seen["sync"] == pytest.approx(0.002)
    assert seen["loss"] == pytest.approx(0.005)


def test_time_that_nothing_can_name_is_said_to_be_unaccounted() -> None:
    script = epoch(Script(), 10)
    script.own(100)
    track = script.track([loader()])
    blind = attribute(track)
    assert blind.unaccounted_share == pytest.approx((0.100 + 10 * 0.001) / blind.wall_s)
    line = Line("train.py", 9, "main", "time.sleep")
    gap_between_steps = next(step.end_ns - MS // 2 for step in attribute(track).steps)
    samples = [(gap_between_steps, 0), (script.now - MS, 0)]
    seen = attribute(script.track([loader()], samples=samples, lines=[line]))
    assert seen.unaccounted_share == pytest.approx(0, abs=1e-9)
    assert seen.hot_lines[0].line == 9
    assert seen.hot_lines[0].phase == "other"


def test_a_cut_pass_is_neither_whole_nor_broken() -> None:
    script = epoch(Script(), 6)
    facts: list[LoaderFacts] = [loader(length=100)]
    seen = attribute(script.track(facts, cuts=[Cut(1, 6, 100, script.now)]))
    assert [(one.is_cut, one.is_whole, one.batches, one.length) for one in seen.passes] == [(True, False, 6, 100)]
    assert len(seen.steps) == 6


def test_passes_that_the_script_leaves_are_as_long_as_it_makes_them() -> None:
    def lengths(*batches: int, whole: bool = False) -> set[int | None]:
        script = Script()
        for count in batches:
            script.span(Kind.ITER, 5, 1)
            for _ in range(count):
                script.step()
            if whole:
                script.exhausted(0)
        return {one.length for one in attribute(script.track([loader(length=100)])).passes}

    assert lengths(3, 2, 3, 1) == {3}  # one came inside an experiment; the last is under way
    assert lengths(1, 1, 1) == {1}  # next(iter(loader)) in every step
    assert lengths(3, 2) == {100}  # left once: it may have been for any reason
    assert lengths(3, 3, 3, whole=True) == {100}


@pytest.mark.parametrize(("more", "steps"), [(3, 5), (40, 45)])
def test_steps_on_batches_that_the_script_keeps_count_where_there_are_many(more: int, steps: int) -> None:
    """`itertools.cycle(loader)` asks the loader for one pass, and then for nothing more."""
    run = Script().span(Kind.ITER, 1, 1)
    for _ in range(5):
        run.step()
    run.exhausted(1)
    for _ in range(more):
        run.span(Kind.FORWARD, 3).own(1).span(Kind.BACKWARD, 4).span(Kind.OPTIMIZER, 1, 1).own(1)
    named = attribute(run.track([loader(length=5)]))
    assert len(named.steps) == steps
    assert sum(phase.share for phase in named.phases) == pytest.approx(1.0)
