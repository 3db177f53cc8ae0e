"""A run over time: bounded in size, nothing lost that matters, and batches joined to the worker that made them."""

import dataclasses
import json
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attribute.tracks import MS, Script, loader
from stoker.attribute import attribute
from stoker.attribute.course import POINTS, course
from stoker.attribute.excerpt import MAIN
from stoker.records import (
    Course,
    Kind,
    Machine,
    Meter,
    Observation,
    Track,
    Window,
    WorkerBatch,
    WorkerTrack,
    decode,
    encode,
)


def batch(begin_ms: float, end_ms: float) -> WorkerBatch:
    zeros = dict.fromkeys([field.name for field in dataclasses.fields(WorkerBatch)], 0)
    times = {"begin_ns": round(begin_ms * MS), "end_ns": round(end_ms * MS), "samples": 4, "collate_s": 0.0005}
    return WorkerBatch(**{**zeros, **times})  # type: ignore[arg-type]


def worker(number: int, batches: Sequence[WorkerBatch], pid: int = 50, loads: int = 1) -> WorkerTrack:
    return WorkerTrack(pid + number, number, loads, 0, 10**12, tuple(batches), (), ())


def observed(track: Track, workers: Sequence[WorkerTrack] = (), meters: Sequence[Meter] = ()) -> Observation:
    machine = Machine(2, None, 8 << 30, None)
    ended = {"exit_code": 0, "whole": True, "interrupted": False, "attached": True, "ended_by_doctor": False}
    return Observation(
        run="r",
        command=("python", "train.py"),
        started_s=0.0,
        start_ns=track.start_ns,
        end_ns=track.end_ns,
        **ended,  # type: ignore[arg-type]
        trouble=(),
        tracks=(track,),
        workers=tuple(workers),
        meters=tuple(meters),
        machine=machine,
    )


def of(track: Track, workers: Sequence[WorkerTrack] = (), meters: Sequence[Meter] = ()) -> Course:
    return course(observed(track, workers, meters), track, attribute(track))


def two_workers(steps: int) -> tuple[Track, list[WorkerTrack]]:
    """Each step waits 2 ms, and its batch is made 1 ms before it is taken, in turn by two workers."""
    script = Script().own(5).span(Kind.ITER, 1, 1)
    taken = []
    for _ in range(steps):
        taken.append(script.now / MS + 2)
        script.step()
    script.exhausted(1).own(3)
    rows = [[batch(at - 8 if at > 20 else 6, at - 1) for at in taken[number::2]] for number in (0, 1)]
    workers = [worker(number, row) for number, row in enumerate(rows)]
    return script.track([loader(workers=2, length=steps)]), workers


def test_each_wait_is_joined_to_the_worker_that_made_its_batch() -> None:
    found = of(*two_workers(40)).excerpt
    assert found is not None
    assert found.steps == 20
    assert found.lanes == ("worker 0", "worker 1", MAIN)
    assert len(found.joins) == 20
    for join in found.joins:
        assert join.lane == f"worker {join.step % 2}"
        assert join.taken_s - join.made_s == pytest.approx(0.001)
        assert join.wait_s == pytest.approx(0.002)


def test_the_main_thread_s_spans_fill_the_excerpt_and_have_the_phases_names() -> None:
    found = of(*two_workers(40)).excerpt
    assert found is not None
    main = [span for span in found.spans if span.lane == MAIN]
    assert sum(span.end_s - span.start_s for span in main) == pytest.approx(found.seconds)
    assert {span.name for span in main} == {"data_wait", "forward", "loss", "backward", "optimizer", "other"}
    assert all(one.end_s <= other.start_s + 1e-9 for one, other in pairwise(main))


def test_workers_that_made_their_batches_too_late_are_not_believed() -> None:
    track, workers = two_workers(40)
    late = [
        dataclasses.replace(
            one,
            batches=tuple(dataclasses.replace(b, end_ns=b.end_ns + 500 * MS) for b in one.batches),
        )
        for one in workers
    ]
    found = of(track, late).excerpt
    assert found is not None
    assert found.joins == ()


def test_an_excerpt_does_not_cross_an_experiment() -> None:
    track, _ = two_workers(40)
    cut_ns = attribute(track).steps[22].start_ns + 4 * MS
    window = Window("replay", cut_ns, cut_ns + MS // 2, 0.1)
    track = dataclasses.replace(track, probes=dataclasses.replace(track.probes, windows=(window,)))
    found = of(track).excerpt
    assert found is not None
    assert not found.first_step <= 22 < found.first_step + found.steps


def test_workers_of_another_rank_are_not_taken_for_this_one_s() -> None:
    track, workers = two_workers(40)
    own = [dataclasses.replace(one, parent=track.pid) for one in workers]
    others = [dataclasses.replace(one, pid=one.pid + 100, parent=2) for one in workers]
    seen = observed(track, [*others, *own])
    seen = dataclasses.replace(seen, tracks=(track, dataclasses.replace(track, pid=2, rank=1)))
    found = course(seen, track, attribute(track)).excerpt
    assert found == of(track, own).excerpt
    assert found is not None
    assert len(found.joins) == 20


def test_no_steady_steps_make_no_excerpt() -> None:
    assert of(Script().own(10).track()).excerpt is None


def test_batches_that_wait_to_be_taken_are_counted() -> None:
    script = Script().own(5).span(Kind.ITER, 1, 1)
    for _ in range(12):
        script.step(wait=0.1)
    script.exhausted(1)
    early = worker(0, [batch(5.2 + i / 100, 5.6 + i / 100) for i in range(12)])
    track = script.track([loader(workers=1, length=12)])
    # Made right after the pass began, 12 in all: one fewer is ready each time one is asked for.
    early = dataclasses.replace(
        early, batches=tuple(dataclasses.replace(b, begin_ns=b.begin_ns + 5 * MS // 10) for b in early.batches)
    )
    found = of(track, [early])
    assert [one.ready for one in found.steps] == [12.0 - i for i in range(12)]


def test_without_workers_nothing_is_said_about_batches_that_are_ready() -> None:
    script = Script().own(5).span(Kind.ITER, 1, 1)
    for _ in range(12):
        script.step()
    assert {one.ready for one in of(script.exhausted(1).track([loader()])).steps} == {None}


def test_a_spike_is_named_after_what_grew() -> None:
    script = Script().own(5).span(Kind.ITER, 1, 1)
    for i in range(40):
        script.step(wait=90 if i == 30 else 2)
    found = of(script.exhausted(1).track([loader()]))
    assert [(one.step, one.part) for one in found.long_steps] == [(30, "data_wait")]


@settings(max_examples=30)
@given(st.lists(st.floats(0.1, 50), min_size=1, max_size=30), st.integers(1, 60))
def test_however_many_steps_there_are_all_are_in_a_bounded_picture(waits: list[float], times: int) -> None:
    script = Script().own(5).span(Kind.ITER, 1, 1)
    for wait in waits * times:
        script.step(wait=wait)
    track = script.exhausted(1).track([loader()])
    named, found = attribute(track), of(track)
    assert len(found.steps) <= POINTS
    assert sum(one.count for one in found.steps) == len(named.steps)
    assert min(one.low_s for one in found.steps) == min(step.seconds for step in named.steps)
    assert max(one.high_s for one in found.steps) == max(step.seconds for step in named.steps)
    assert decode(Course, json.loads(json.dumps(encode(found)))) == found


def meter(at_ms: float, rss: dict[str, int]) -> Meter:
    nothing = {field.name: None for field in dataclasses.fields(Meter)}
    held = {"time_ns": round(at_ms * MS), "rss_bytes": rss, "cpu_s": {}, "private_bytes": {}, "free_bytes": 5 << 30}
    return Meter(**{**nothing, **held})  # type: ignore[arg-type]


def test_memory_is_told_by_process_and_a_worker_s_successor_has_its_name() -> None:
    track, workers = two_workers(40)
    again = dataclasses.replace(workers[0], pid=70, batches=())
    found = of(track, [*workers, again], [meter(10, {"1": 100, "50": 7, "51": 8}), meter(400, {"1": 120, "70": 9})])
    held = {one.name: one.sizes_bytes for one in found.memory}
    assert held == {"main": (100, 120), "worker 0": (7, 9), "worker 1": (8, None)}
    assert found.memory_limit_bytes == 8 << 30
    assert found.memory_free_bytes == 5 << 30


def test_the_device_s_own_timeline_is_a_lane_and_a_busy_share() -> None:
    track, workers = two_workers(40)
    starts = [step.start_ns + 3 * MS for step in attribute(track).steps]
    track = dataclasses.replace(
        track,
        device_starts_ns=tuple(starts),
        device_ends_ns=tuple(start + 6 * MS for start in starts),
        device_work=(1,) * len(starts),
    )
    found = of(track, workers)
    assert found.excerpt is not None
    device = [span for span in found.excerpt.spans if span.lane == "device"]
    assert [span.name for span in device] == ["forward"] * 20
    busy = sum(found.busy_shares) / len(found.busy_shares) * found.seconds
    assert busy == pytest.approx(40 * 0.006, rel=0.02)
