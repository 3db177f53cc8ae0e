"""A run in the words of the contract."""

import dataclasses

import pytest

from attribute.tracks import Script, loader
from stoker.attribute import attribute
from stoker.attribute.summary import counted, stolen_share, summarise, within_reach
from stoker.records import Ceilings, Cut, Diagnosis, Kind, Machine, Meter, Observation, Track


def say(track: Track, *, ended_by_doctor: bool = False) -> Diagnosis:
    machine = Machine(cores=2, quota_cores=None, ram_bytes=1 << 30, shm_bytes=None)
    seen = Observation(
        "r", ("x",), 0.0, 0, track.end_ns, 0, False, False, True, ended_by_doctor, (), (track,), (), (), machine
    )
    return summarise(seen, track, attribute(track), None)


def zipped(script: Script, steps: int) -> None:
    """An epoch of `zip(a, b)`."""
    script.span(Kind.ITER, 5, 1).span(Kind.ITER, 7, 2)
    for i in range(steps):
        script.span(Kind.NEXT, 10 if i == 0 else 2, 1).step(wait=20 if i == 0 else 3, number=2)
    script.exhausted(1, 1)


def test_zipped_loaders_have_one_first_batch_an_epoch() -> None:
    script = Script().own(100)
    for _ in range(3):
        zipped(script, 10)
    said = say(script.track([loader(1), loader(2)]))
    assert (said.epochs, said.steps) == (3, 30)
    assert said.first_batch_s == pytest.approx([0.022] * 3)  # the start of both, and the first batch of the first one


def test_loaders_in_turn_have_the_first_batches_of_the_one_that_steps_are_counted_by() -> None:
    script = Script().own(100)
    for _ in range(3):
        for number, wait in ((1, 20), (2, 10)):
            script.span(Kind.ITER, 5, number)
            for i in range(6 * number):
                script.step(wait=wait if i == 0 else 2, number=number)
            script.exhausted(1, number)
    said = say(script.track([loader(1, length=6), loader(2, length=12)]))
    assert (said.epochs, said.steps, said.steps_per_epoch) == (3, 36, 12)
    assert said.first_batch_s == pytest.approx([0.015] * 3)
    assert len(said.epoch_s) == 2  # to the next one; there is no mark of the script's end


def test_what_comes_before_a_loop_that_never_came_was_not_measured() -> None:
    assert say(Script().own(100).span(Kind.FORWARD, 5).track()).startup_s is None
    script = Script().own(100)
    zipped(script, 3)
    assert say(script.track([loader(1), loader(2)])).startup_s == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("measured", "told"), [((40.0, None), (100.0, None)), ((400.0, 99.0), (400.0, 100.0)), ((None, None), (None, None))]
)
def test_a_ceiling_is_never_below_what_was_reached(
    measured: tuple[float | None, float | None], told: tuple[float | None, float | None]
) -> None:
    said = dataclasses.replace(say(Script().own(100).track()), samples_per_s=100.0, ceilings=Ceilings(*measured))
    assert within_reach(said).ceilings == Ceilings(*told)
    unknown = dataclasses.replace(said, samples_per_s=None)
    assert within_reach(unknown).ceilings == unknown.ceilings


@pytest.mark.parametrize("how", ["whole", "cut", "ended"])
def test_new_files_are_a_shortened_runs_only_if_it_was_shortened(how: str) -> None:
    script = Script().own(100)
    zipped(script, 6)
    cuts = [Cut(1, 6, 10, 0)] if how == "cut" else []
    track = dataclasses.replace(script.track([loader(1), loader(2)], cuts), made=("log.csv",))
    (note,) = [one for one in say(track, ended_by_doctor=how == "ended").notes if "log.csv" in one]
    assert note.startswith("the script itself wrote 1 new file")
    assert ("shortened" in note) == (how != "whole")


def test_all_new_files_are_counted_though_few_are_named() -> None:
    script = Script().own(100)
    zipped(script, 6)
    track = dataclasses.replace(script.track([loader(1), loader(2)]), made=("a.csv", "b.csv"), made_count=600)
    (note,) = [one for one in say(track).notes if "a.csv" in one]
    assert note.startswith("the script itself wrote 600 new files")


def test_one_is_not_said_in_the_plural() -> None:
    assert [counted(n, "step") for n in (0, 1, 2)] == ["0 steps", "1 step", "2 steps"]


def test_what_the_host_took_is_a_share_of_what_was_wanted() -> None:
    def meter(busy_s: float | None, stolen_s: float | None) -> Meter:
        return Meter(0, {}, {}, {}, None, None, None, None, None, None, None, None, None, None, busy_s, stolen_s)

    assert stolen_share([meter(100.0, 7.0), meter(103.0, 7.5), meter(109.0, 8.0)]) == pytest.approx(0.1)
    assert stolen_share([meter(100.0, 7.0), meter(100.0, 7.0)]) == 0
    assert stolen_share([meter(None, None), meter(None, None)]) is None
    assert stolen_share([]) is None
