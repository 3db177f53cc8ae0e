"""Advice: never what is set already, never more workers than memory holds, always a legal value."""

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnose.runs import facts, loader
from stoker.advise import advise
from stoker.diagnose.causes import CAUSES, finding
from stoker.knobs import KNOBS
from stoker.records import Diagnosis, LoaderWait, Meter, Observation
from stoker.records.probes import Making


def case(
    cause: str, *, private: int = 1 << 30, free: int = 2**34, **loader_changes: Any
) -> tuple[Diagnosis, Observation]:
    run = facts()
    wait = LoaderWait(loader(**loader_changes), "train", 1, 100, 1.0, ())
    said = dataclasses.replace(run.said, findings=(finding(cause, gain=2.0, off=0.1),), loaders=(wait,))
    meter = Meter(0, {}, {"7": private}, {}, None, free, None, None, None, None, None, None, None, None)
    from diagnose.runs import worker

    return said, dataclasses.replace(run.seen, meters=(meter,), workers=(worker(),))


def candidates(cause: str, **changes: Any) -> list[Any]:
    said, seen = case(cause, **changes)
    return list(advise(said, seen).findings[0].candidates)


@pytest.mark.parametrize("cause", sorted(set(CAUSES) - {"compute-bound", "healthy"}))
def test_every_cause_leads_to_something_to_do(cause: str) -> None:
    found = candidates(cause, num_workers=1, persistent_workers=False)
    assert found
    for one in found:
        if one.knob is not None:
            assert KNOBS[one.knob].check(one.value) == one.value


def test_what_is_set_already_is_not_advised() -> None:
    assert all(one.knob != "persistent_workers" for one in candidates("worker-respawn", persistent_workers=True))
    assert all(one.knob != "pin_memory" for one in candidates("blocking-copy", pin_memory=True))
    assert all(one.knob != "num_workers" for one in candidates("too-many-workers", num_workers=2))


@pytest.mark.parametrize(("workers", "advised"), [(0, 2), (1, 2), (2, 4), (3, 6)])
def test_workers_that_are_too_few_become_one_for_each_core_or_twice_as_many(workers: int, advised: int) -> None:
    found = candidates("too-few-workers", num_workers=workers)
    assert [one.value for one in found if one.knob == "num_workers"] == [advised]


@given(st.integers(0, 64), st.integers(1 << 20, 1 << 36), st.integers(1 << 20, 1 << 36))
def test_workers_are_never_advised_beyond_memory(workers: int, private: int, free: int) -> None:
    for cause in ("too-few-workers", "request-latency"):
        for one in candidates(cause, num_workers=workers, private=private, free=free):
            if one.knob == "num_workers":
                assert one.value * private <= free or one.value < workers


def test_the_budget_of_workers_says_what_does_not_fit() -> None:
    said, seen = case("decode-cpu", private=8 << 30, free=16 << 30)
    rows = {row.workers: row.fits for row in advise(said, seen).worker_budget}
    assert rows[1]
    assert not rows[4]


@pytest.mark.parametrize("cause", ["decode-cpu", "io-bandwidth", "shuffle-thrash", "read-amplification"])
def test_images_are_to_be_packed_at_a_size_and_other_data_as_it_is(cause: str) -> None:
    said, seen = case(cause)
    for files, sized in ((("/d/cat/1.jpg", "/d/dog/2.JPG"), True), (("/d/1.npy", "/d/2.npy"), False)):
        made = dataclasses.replace(seen.workers[0], makings=(Making(8, 1.0, 0, None, None, (), files),))
        found = advise(said, dataclasses.replace(seen, workers=(made,))).findings[0].candidates
        packs = [one for one in found if one.hint.startswith("stoker pack /d ")]
        assert bool(packs) == ((cause, sized) not in {("decode-cpu", False), ("shuffle-thrash", True)})
        assert all(("--size" in one.hint, one.changes_results) == (sized, sized) for one in packs)


@pytest.mark.parametrize(
    ("files", "opened"),
    [
        (("s3://photos/train/cat/1.jpg", "s3://photos/train/dog/2.jpg"), "s3://photos/train/"),
        (("/cache/1.jpg", "http://host:9/tiles/1.jpg", "http://host:9/tiles/2.jpg"), "http://host:9/tiles/"),
    ],
)
def test_images_that_come_from_elsewhere_are_to_be_fetched_from_there(files: tuple[str, ...], opened: str) -> None:
    said, seen = case("request-latency")
    made = dataclasses.replace(seen.workers[0], files=files)
    found = advise(said, dataclasses.replace(seen, workers=(made,))).findings[0].candidates
    source = f'stoker.open("{opened}", size=(224, 224)'
    assert any(one.kind == "loader" and one.hint.startswith(f"+ data = {source}") for one in found)
    assert any(one.hint.startswith(source) and one.hint.endswith(".stage()") for one in found)
    assert not any("DATA" in one.hint for one in found)


def test_data_that_comes_from_elsewhere_and_cannot_be_fetched_has_no_address_in_the_advice() -> None:
    said, seen = case("request-latency")
    files = ("http://host:9/a/1.npy", "http://host:9/a/2.npy")
    made = dataclasses.replace(seen.workers[0], makings=(Making(8, 1.0, 0, None, None, (), files),))
    found = advise(said, dataclasses.replace(seen, workers=(made,))).findings[0].candidates
    assert not any("host:9" in one.hint for one in found)


def test_a_run_gains_by_a_restart_only_early() -> None:
    said, seen = case("decode-cpu")
    assert advise(said, seen).restart_below_share == pytest.approx(0.5)


@pytest.mark.parametrize("cause", ["too-few-workers", "request-latency", "per-item-fetch"])
def test_a_stream_is_never_given_to_workers_that_would_each_bring_all_of_it(cause: str) -> None:
    found = candidates(cause, num_workers=0, stream=True)
    assert all(one.knob is None for one in found)
    assert all("__getitems__" not in one.hint for one in found)
    divided = [one for one in found if "get_worker_info" in one.hint]
    assert cause == "per-item-fetch" or (all(one.changes_results for one in divided) and divided)
    assert any(one.knob == "num_workers" for one in candidates("request-latency", num_workers=2, stream=True))


def test_a_loop_without_a_loader_is_not_told_of_workers() -> None:
    said, seen = case("request-latency")
    found = advise(dataclasses.replace(said, loaders=()), seen).findings[0].candidates
    assert found
    assert all(one.knob is None and "Loader" not in one.hint and "__getitems__" not in one.hint for one in found)


@pytest.mark.parametrize("function", ["Days.__getitem__", "Pipe.__call__", "Days._load", "prepare"])
def test_a_method_that_python_calls_is_not_advised_to_call_itself(function: str) -> None:
    said, seen = case("repeated-work")
    there = dataclasses.replace(said.findings[0], place=f"train.py:9 {function}")
    first = advise(dataclasses.replace(said, findings=(there,)), seen).findings[0].candidates[0]
    assert "__(" not in first.hint
    assert "self.kept" in first.hint
