"""The outcome of a tuning in the terminal."""

import dataclasses
import io
import subprocess
import tomllib
from pathlib import Path

import pytest
from rich.console import Console

from report.tunings import tuning
from stoker.records import Final
from stoker.report import decision


@pytest.mark.parametrize(("ratio", "told"), [(1.4, True), (1.01, False)])
def test_what_looked_faster_and_was_not_decided_is_said(ratio: float, told: bool) -> None:
    made = tuning()
    trials = [dataclasses.replace(one, ratio=ratio) if one.decision == "undecided" else one for one in made.trials]
    out = io.StringIO()
    decision.show(dataclasses.replace(made, trials=tuple(trials)), Console(file=out, width=200))
    assert ("undecided: num_workers=4 looked 1.40" in out.getvalue()) == told
    assert "undecided: num_workers=2" not in out.getvalue()
    assert "set num_workers=2: 1.62" in out.getvalue()


def test_a_caution_stands_in_the_terminal_and_in_the_record() -> None:
    made = tuning()
    assert made.context is not None
    short = dataclasses.replace(made, context=dataclasses.replace(made.context, caution="it ends after 6 steps"))
    out = io.StringIO()
    decision.show(short, Console(file=out, width=200))
    assert "caution: it ends after 6 steps" in out.getvalue()
    assert "Caution: it ends after 6 steps" in decision.markdown(short)
    assert "aution" not in decision.markdown(made)


@pytest.mark.parametrize(
    ("ended", "interrupted", "says"),
    [
        ("nothing that is left is predicted to bring 3 %", False, "nothing was worth a trial"),
        ("the budget leaves no time to try num_workers=2", False, "nothing was tried"),
        ("it was interrupted", True, "nothing was tried"),
    ],
)
def test_what_there_was_no_time_for_is_not_said_to_be_worth_nothing(ended: str, interrupted: bool, says: str) -> None:
    made = tuning()
    assert made.context is not None
    context = dataclasses.replace(made.context, ended=ended, interrupted=interrupted)
    bare = dataclasses.replace(made, trials=(), final=Final({}, None, None, None), context=context)
    text = decision.markdown(bare)
    assert f"keep the configuration as it is; {says}" in text
    assert f"## Attempts\n\n{says.capitalize()}." in text
    assert ("Decided, 1970" in text) == (says == "nothing was worth a trial")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\f\n"])
@pytest.mark.parametrize("where", ["exp.yaml", "conf/exp.yaml", "{}/exp.yaml", "../{}/exp.yaml"])
def test_a_patch_can_be_applied_wherever_the_file_lies(tmp_path: Path, where: str, end: str) -> None:
    here = tmp_path / "here"
    path = Path(where.format(tmp_path) if where.startswith("{}") else where.format("elsewhere"))
    (here / path).parent.mkdir(parents=True, exist_ok=True)
    here.mkdir(exist_ok=True)
    before, after = (f"workers: {count}{end}size: 3{end}" for count in (0, 4))
    (here / path).write_bytes(before.encode())
    (here / "config.patch").write_text(decision.patch(path, before, after))
    subprocess.run(["patch", str(path), "config.patch"], cwd=here, check=True, capture_output=True)
    assert (here / path).read_bytes().decode() == after


def test_a_patch_of_a_name_with_spaces_is_found_by_patch_itself(tmp_path: Path) -> None:
    (tmp_path / "my exp.yaml").write_text("workers: 0\n")
    text = decision.patch(Path("my exp.yaml"), "workers: 0\n", "workers: 4\n")
    subprocess.run(["patch", "-p1"], cwd=tmp_path, input=text, check=True, capture_output=True, text=True)
    assert (tmp_path / "my exp.yaml").read_text() == "workers: 4\n"


def test_what_is_kept_is_toml_whatever_its_letters() -> None:
    made = tuning()
    knobs: dict[str, int | str | None] = {"num_workers": 2, "name": 'ü 🔥 \\ "x"', "none": None}
    text = decision.toml(dataclasses.replace(made, final=dataclasses.replace(made.final, knobs=knobs)), {}, {})
    assert tomllib.loads(text)["knobs"] == {"num_workers": 2, "name": 'ü 🔥 \\ "x"'}


def test_another_batch_size_is_told_with_what_a_step_holds() -> None:
    made = tuning()
    trial = dataclasses.replace(made.trials[0], reference_step_s=0.05, step_s=0.1, reference_batch=8, batch=64)
    told = decision.markdown(dataclasses.replace(made, trials=(trial,)))
    assert "50 ms a step of 8 samples → 100 ms a step of 64" in told


def test_a_trial_that_ended_before_it_was_measured_has_no_step_of_none() -> None:
    made = tuning()
    trial = dataclasses.replace(made.trials[2], reference_step_s=0.05, step_s=None, reference_batch=8, batch=None)
    told = decision.markdown(dataclasses.replace(made, trials=(trial,)))
    assert "- Before → after: 50 ms a step → not measured" in told
    assert "The evidence is from 2 cores, 24.0 GiB of RAM, device sim, with this data and this command" in told


def test_the_analysis_says_what_became_of_the_wait_for_data() -> None:
    made = tuning()
    trial = dataclasses.replace(made.trials[0], reference_wait_share=0.93, wait_share=0.41)
    told = decision.markdown(dataclasses.replace(made, trials=(trial,)))
    assert "waiting for data took 93% of a step before, 41% after" in told
