"""The steps of an investigation, on a contest whose processes take no time: what is measured is made up."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stoker.advise.plan import Idea
from stoker.commands.tune.investigate import Investigation, judge_at_looks
from stoker.commands.tune.record import build
from stoker.commands.tune.request import Request, steady_seconds
from stoker.errors import ScriptFailedError, UsageError
from stoker.predict.pipeline import Pipeline
from stoker.records import Files, LoaderFacts, Outcome, Value
from stoker.trial.command import Command
from stoker.trial.contest import Contest
from stoker.trial.journal import Entry
from stoker.trial.measure import Manner, Sample


class Made(Contest):
    """A contest that measures a formula, which is None where a run fails. Everything else of it is the real one."""

    def __init__(self, directory: Path, step_s: Any, **options: Any) -> None:
        super().__init__(
            Command(["python"]), directory, Manner(1.0), max_ram_bytes=None, judge=judge_at_looks, **options
        )
        self.step_s = step_s
        self.measured: list[dict[str, Value]] = []

    def _measure(self, wanted: Mapping[str, Value], knobs: Mapping[str, Value]) -> Entry:
        self.measured.append(dict(wanted))
        step_s = self.step_s(wanted)
        if step_s is None:
            place = self._directory / f"{self.processes:03}"
            place.mkdir(exist_ok=True)
            (place / "output.txt").write_text("ValueError: mine")
            failed = Outcome("failed", 1, "it exited with code 1", 10.0, 1 << 20, None, None, 1, "watch", 0.0)
            return Entry(place.name, dict(wanted), 10.0, Sample(failed, None, 0, None, None, None, {}, ()))
        step_s *= 1 + 0.002 * (len(self.measured) % 3)
        workers = wanted.get("num_workers", 0)
        assert isinstance(workers, int)
        facts = LoaderFacts(1, "D", "D", 10_000, 40_000, 4, workers, 2 if workers else None, False, bool(wanted.get("persistent_workers")), False, None, "", 0)  # noqa: E501  # fmt: skip
        pipeline = Pipeline(workers, 2, 2.0, (0.001,), (0.08,), 0.001, 0.0, main_bytes=1 << 20, epoch_steps=10_000)
        outcome = Outcome("finished", 0, "it ended by itself", 10.0, 1 << 20, None, None, 1, "watch", 0.0)
        sample = Sample(outcome, step_s, 100, 4, facts, pipeline, {"num_workers": 0}, (), losses=(1.0, 0.9))
        return Entry("001", dict(wanted), 10.0, sample)


def investigation(contest: Made, **changes: Any) -> Investigation:
    request = Request(**{"words": ("python",), "start": {}, "asked": (), "search": (), "budget_s": 1e4, "steady_s": 1.0, **changes})  # noqa: E501  # fmt: skip
    return Investigation(contest, request, lambda _: None, lambda _: None, lambda *_: None)


def shared(knobs: Mapping[str, Value]) -> float:
    """Workers bring their number up to eight; then prefetching brings a fifth."""
    workers = knobs.get("num_workers", 0)
    assert isinstance(workers, int)
    return 0.08 / max(min(workers, 8), 1) / (1.2 if knobs.get("prefetch_factor", 2) != 2 else 1.0)


def test_the_plan_is_made_anew_from_what_was_kept_and_the_whole_is_held_against_the_users_own(tmp_path: Path) -> None:
    contest = Made(tmp_path, shared, budget_s=1e4)
    found = investigation(contest, asked=({"num_workers": 8}, {"prefetch_factor": 4})).run()
    assert [set(one.knobs) for one in found.done[:3]] == [
        {"num_workers"},
        {"prefetch_factor"},
        {"num_workers", "prefetch_factor"},
    ]
    assert found.final is not None
    assert found.final.is_kept
    assert found.final.ratio == pytest.approx(9.6, rel=0.05)
    assert dict(found.final.knobs) == {"num_workers": 8, "prefetch_factor": 4}


def test_resuming_measures_nothing_twice_and_ends_the_same(tmp_path: Path) -> None:
    first = Made(tmp_path, shared, budget_s=1e4)
    ended = investigation(first, asked=({"num_workers": 8}, {"num_workers": 2})).run()
    lines = (tmp_path / "journal.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "journal.jsonl").write_text("".join(lines[:5]))
    again = Made(tmp_path, shared, budget_s=1e4)
    once_more = investigation(again, asked=({"num_workers": 8}, {"num_workers": 2})).run()
    assert len(again.measured) == len(first.measured) - 5
    assert [one.verdict for one in once_more.done] == [one.verdict for one in ended.done]
    assert again.spent_s == first.spent_s


def test_nothing_is_tried_without_time_for_one_comparison(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"one run takes 10 s, so 80 s are needed; set --budget"):
        investigation(Made(tmp_path, shared, budget_s=60.0), asked=({"num_workers": 2},)).run()


def test_the_budget_is_not_overrun_by_more_than_a_process(tmp_path: Path) -> None:
    contest = Made(tmp_path, lambda _: 0.1, budget_s=200.0)
    found = investigation(contest, asked=tuple({"num_workers": n} for n in range(1, 8))).run()
    assert contest.spent_s <= 210
    assert found.kept == []
    assert found.ended.startswith("the budget leaves no time to try num_workers=")


@pytest.mark.parametrize(
    ("text", "budget_s", "steady_s"), [(None, 600, 6), (None, 120, 3), (None, 20, 1.5), ("9s", 20, 9)]
)
def test_a_small_budget_watches_each_run_for_less_time(text: str | None, budget_s: float, steady_s: float) -> None:
    assert steady_seconds(text, budget_s) == steady_s


@pytest.mark.parametrize("budget_s", [115.0, 120.0])  # the last round may end one process late
def test_a_small_budget_decides_one_gain_instead_of_trying_two_in_vain(tmp_path: Path, budget_s: float) -> None:
    """Twelve runs: a gain that is not clear after three rounds needs five of them, and two references before."""
    contest = Made(tmp_path, lambda knobs: 0.1 if knobs.get("num_workers") != 3 else 0.093, budget_s=budget_s)
    found = investigation(contest, asked=({"num_workers": 2}, {"num_workers": 3})).run()
    assert [(dict(one.knobs), one.verdict[0], len(one.rounds)) for one in found.done] == [
        ({"num_workers": 3}, "keep", 5)
    ]


def test_of_the_values_asked_for_the_one_that_promises_most_is_tried_first(tmp_path: Path) -> None:
    contest = Made(tmp_path, shared, budget_s=115.0)
    asked: tuple[dict[str, Value], ...] = ({"num_workers": 1}, {"num_workers": 2}, {"num_workers": 4})
    found = investigation(contest, asked=asked, only=True).run()
    assert [(dict(one.knobs), one.verdict[0]) for one in found.done][:1] == [({"num_workers": 4}, "keep")]


def test_what_is_faster_and_changes_the_loss_is_not_kept(tmp_path: Path) -> None:
    class Spoiled(Made):
        def _measure(self, wanted: Mapping[str, Value], knobs: Mapping[str, Value]) -> Entry:
            entry = super()._measure(wanted, knobs)
            assert entry.sample is not None
            losses = (1.0, 5.0) if "amp" in wanted else (1.0, 0.9)
            return replace(entry, sample=replace(entry.sample, losses=losses))

    contest = Spoiled(tmp_path, lambda knobs: 0.02 if "amp" in knobs else 0.1, budget_s=1e4)
    found = investigation(contest, asked=({"amp": "bf16"},), only=True).run()
    assert found.done[0].verdict[0] == "revert"
    assert "its loss differs" in found.done[0].verdict[1]
    assert found.losses[0].verdict == "differs"


def test_a_reference_that_fails_once_by_chance_is_run_again(tmp_path: Path) -> None:
    calls = iter([0.08, 0.08, None, *[0.08] * 100])
    contest = Made(tmp_path, lambda knobs: next(calls) if not knobs else 0.02, budget_s=1e4)
    found = investigation(contest, asked=({"num_workers": 2},), only=True).run()
    assert found.done[0].is_kept
    assert '"failed"' not in (tmp_path / "journal.jsonl").read_text()


def test_a_reference_that_fails_at_last_leaves_what_was_decided_and_can_be_gone_on_with(tmp_path: Path) -> None:
    asked = ({"num_workers": 2}, {"pin_memory": True})

    def early(knobs: Mapping[str, Value]) -> float | None:
        return None if contest.processes > 12 and not knobs else 0.08

    contest = Made(tmp_path, early, budget_s=1e4)
    first = investigation(contest, asked=asked, only=True)
    with pytest.raises(ScriptFailedError, match=r"(?s)^ValueError: mine.*after [4-9] runs that did not"):
        first.run()
    assert first.found.first is not None
    assert [dict(one.knobs) for one in first.found.done] == list(asked)
    assert first.found.ended.startswith("the command failed as it is, after")
    again = Made(tmp_path, lambda _: 0.08, budget_s=1e4)
    assert [dict(one.knobs) for one in investigation(again, asked=asked, only=True).run().done] == list(asked)
    assert len(again.measured) < again.processes


def test_what_is_simulated_after_it_was_measured_is_no_prediction(tmp_path: Path) -> None:
    class Sized(Made):
        def _measure(self, wanted: Mapping[str, Value], knobs: Mapping[str, Value]) -> Entry:
            entry = super()._measure(wanted, knobs)
            assert entry.sample is not None
            return replace(entry, sample=replace(entry.sample, batch_size=wanted.get("batch_size", 4)))  # type: ignore[arg-type]

    contest = Sized(tmp_path, lambda knobs: 0.1 if "batch_size" in knobs else 0.08, budget_s=1e4)
    found = investigation(contest, asked=({"batch_size": 32},), only=True).run()
    assert found.done[0].is_kept
    assert found.done[0].predicted_ratio is None


@pytest.mark.parametrize("step_s", [None, 0.1])
def test_where_many_workers_fail_or_are_slower_fewer_are_tried(tmp_path: Path, step_s: float | None) -> None:
    def crowded(knobs: Mapping[str, Value]) -> float | None:
        workers = knobs.get("num_workers", 0)
        assert isinstance(workers, int)
        return step_s if workers > 2 else 0.08 / max(workers, 1)

    found = investigation(Made(tmp_path, crowded, budget_s=1e5)).run()
    assert found.final is not None
    assert found.final.knobs["num_workers"] == 2
    counts = [int(one.knobs["num_workers"] or 0) for one in found.done if "num_workers" in one.knobs]
    assert len(counts) == len(set(counts))
    if step_s is None:  # with more of them it would have failed too
        crashed = [count for one, count in zip(found.done, counts, strict=False) if one.failure]
        assert crashed == sorted(crashed, reverse=True)


def test_what_the_reference_has_is_not_tried_against_itself(tmp_path: Path) -> None:
    contest = Made(tmp_path, shared, budget_s=1e4)
    found = investigation(contest, asked=tuple({"num_workers": n} for n in (0, 2, 4)), only=True).run()
    assert {one.knobs["num_workers"] for one in found.done} == {2, 4}
    assert {"num_workers": 0} not in contest.measured


def test_a_knob_that_could_not_be_set_is_tried_again_beside_what_was_kept(tmp_path: Path) -> None:
    class Choosy(Made):
        def _measure(self, wanted: Mapping[str, Value], knobs: Mapping[str, Value]) -> Entry:
            entry = super()._measure(wanted, knobs)
            assert entry.sample is not None
            no = ("it needs workers",) if "prefetch_factor" in wanted and not wanted.get("num_workers") else ()
            return replace(entry, sample=replace(entry.sample, refused=no))

    asked = ({"num_workers": 8}, {"prefetch_factor": 4})
    found = investigation(Choosy(tmp_path, shared, budget_s=1e4), asked=asked, only=True).run()
    told = [(dict(one.knobs), one.verdict[0], dict(one.base)) for one in found.done]
    assert ({"prefetch_factor": 4}, "revert", {}) in told
    assert ({"prefetch_factor": 4}, "keep", {"num_workers": 8}) in told


def test_the_record_rests_on_all_runs_of_the_reference_and_a_gain_survives_an_interruption(tmp_path: Path) -> None:
    calls = iter([0.8, *[0.08] * 1000])
    contest = Made(tmp_path, lambda knobs: next(calls) if not knobs else 0.02, budget_s=1e4)
    one = investigation(contest, asked=({"num_workers": 2},), only=True, goal_s=500.0)
    one.run()
    one.found.final = None  # as after Ctrl-C
    tuning = build(one.found, contest, one.request, Files("", "", None), 0.0, interrupted=True)
    assert tuning.reference.step_s == pytest.approx(0.08, rel=0.05)
    assert tuning.final.ratio == pytest.approx(4.0, rel=0.05)
    assert tuning.goal is not None
    assert tuning.goal.reached
    assert tuning.trials[0].before == 0


def test_an_epoch_of_less_than_a_second_is_not_told_as_none(tmp_path: Path) -> None:
    contest = Made(tmp_path, lambda knobs: 2e-5 if knobs else 4e-5, budget_s=1e4)
    one = investigation(contest, asked=({"num_workers": 2},), only=True, goal_s=0.3)
    tuning = build(one.run(), contest, one.request, Files("", "", None), 0.0, interrupted=False)
    assert tuning.goal is not None
    assert tuning.goal.why.startswith("an epoch takes 2")
    assert tuning.goal.why.endswith(" ms with what was kept; the goal is 300 ms")
    assert not any(" 0 s" in other.brings for other in tuning.alternatives)


@pytest.mark.parametrize("keep_results", [False, True])
def test_workers_that_each_bring_all_of_a_stream_are_no_plain_gain(tmp_path: Path, keep_results: bool) -> None:
    class Streaming(Made):
        def _measure(self, wanted: Mapping[str, Value], knobs: Mapping[str, Value]) -> Entry:
            entry = super()._measure(wanted, knobs)
            assert entry.sample is not None
            assert entry.sample.loader is not None
            facts = replace(entry.sample.loader, stream=True)
            return replace(entry, sample=replace(entry.sample, loader=facts, losses=(1.0, 0.9, 0.95)))

    contest = Streaming(tmp_path, shared, budget_s=1e4)
    one = investigation(contest, asked=({"num_workers": 1}, {"num_workers": 2}), only=True, keep_results=keep_results)
    found = one.run()
    tuning = build(found, contest, one.request, Files("", "", None), 0.0, interrupted=False)
    of = {trial.knobs["num_workers"]: trial for trial in tuning.trials[:2]}
    assert [of[workers].changes_results for workers in (1, 2)] == [False, True]
    assert [of[workers].loss is not None for workers in (1, 2)] == [False, True]
    assert tuning.context is not None
    assert "each brings all of it" in (tuning.context.caution or "")
    assert dict(tuning.final.knobs) == ({} if keep_results else {"num_workers": 2})


def test_a_key_of_a_config_file_is_simulated_and_refused_like_the_knob_that_it_is(tmp_path: Path) -> None:
    contest = Made(tmp_path, shared, budget_s=1e4)
    found = investigation(contest, asked=({"train.num_workers": 2**40},), only=True).run()
    assert found.done[0].predicted_ratio is not None
    assert found.done[0].verdict[0] == "unsafe"
    assert {"train.num_workers": 2**40} not in contest.measured


@pytest.mark.parametrize("heard", [True, False])
def test_what_is_planned_goes_through_the_config_file_where_the_script_reads_it_there(
    tmp_path: Path, heard: bool
) -> None:
    class Configured(Made):
        def _measure(self, wanted: Mapping[str, Value], knobs: Mapping[str, Value]) -> Entry:
            workers = wanted.get("num_workers", wanted.get("train.num_workers", 0) if heard else 0)
            return replace(super()._measure({"num_workers": workers}, knobs), knobs=dict(wanted))

    path = tmp_path / "exp.yaml"
    path.write_text("train:\n  num_workers: 0  # for now\n  prefetch: 2\n")
    contest = Configured(tmp_path, shared, budget_s=1e5)
    contest.command = Command(["python", str(path)], path)
    found = investigation(contest).run()
    assert found.final is not None
    name = "train.num_workers" if heard else "num_workers"
    assert int(found.final.knobs[name] or 0) >= 8
    told = [one.verdict for one in found.done if "train.num_workers" in one.knobs]
    keyed = [one.knobs["train.num_workers"] for one in found.done if "train.num_workers" in one.knobs]
    assert heard or keyed[0] in [one.knobs.get("num_workers") for one in found.done]  # that number has not failed
    assert heard or told[0] == (
        "revert",
        "train.num_workers does not reach the loader, which has num_workers=0 all the same",
    )


def test_a_key_that_spoils_the_loss_is_not_tried_again_by_another_way(tmp_path: Path) -> None:
    class Spoiled(Made):
        def _measure(self, wanted: Mapping[str, Value], knobs: Mapping[str, Value]) -> Entry:
            entry = super()._measure({}, knobs)
            assert entry.sample is not None
            assert entry.sample.loader is not None
            size = wanted.get("train.batch_size", wanted.get("batch_size", 4))
            assert isinstance(size, int)
            facts = replace(entry.sample.loader, batch_size=size)
            losses = (1.0, 0.9) * 10 if size == 4 else (5.0, 4.9) * 10
            self.sizes.append(dict(wanted))
            return replace(
                entry, knobs=dict(wanted), sample=replace(entry.sample, batch_size=size, loader=facts, losses=losses)
            )

        sizes: list[dict[str, Value]] = []  # noqa: RUF012  one test, one contest

    path = tmp_path / "exp.yaml"
    path.write_text("train:\n  batch_size: 4\n")
    contest = Spoiled(tmp_path, lambda _: 0.1, budget_s=1e5)
    contest.command = Command(["python", str(path)], path)
    one = investigation(contest)
    one.found.first = contest.refer()
    candidate = one._candidate(Idea({"batch_size": 8}, "twice the samples"))
    assert dict(candidate.knobs) == {"train.batch_size": 8}
    one._try([candidate])
    assert "its loss differs" in candidate.verdict[1]
    assert not one._may_be_set_now(candidate)
