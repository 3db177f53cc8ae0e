"""`stoker tune` on real scripts. The one whose knob matters waits instead of working, so that cores do not matter."""

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from scripts import LIGHT
from stoker.commands.tune.request import Request
from stoker.ledger import Ledger

PLAIN = """
import time, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 4000
    def __getitem__(self, i):
        time.sleep(0.04)
        return torch.randn(8), i % 2

model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for x, y in DataLoader(Slow(), batch_size=4):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
    torch.save(model.state_dict(), "model.pt")
"""
WAITING = LIGHT + PLAIN


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "stoker", "tune", *arguments]


def tune(tmp_path: Path, *arguments: str, script: str = WAITING) -> subprocess.CompletedProcess[str]:
    (tmp_path / "train.py").write_text(script)
    return subprocess.run(command(*arguments), capture_output=True, text=True, check=False, cwd=tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_and_resumed_a_knob_that_helps_is_kept_and_one_that_cannot_be_set_is_reverted(tmp_path: Path) -> None:
    sampled = "DataLoader(Slow(), batch_sampler=torch.utils.data.BatchSampler(range(4000), 4, False))"
    (tmp_path / "train.py").write_text(WAITING.replace("DataLoader(Slow(), batch_size=4)", sampled))
    knobs = ["--only", "--knob", "num_workers=8", "--knob", "batch_size=8"]
    options = ["--budget", "14m", "--steady", "2s", "--goal", "epoch=9h"]
    tuner = subprocess.Popen(command(*knobs, *options, "train.py"), cwd=tmp_path, stderr=subprocess.DEVNULL)
    _wait_for(lambda: len(_journal(tmp_path)) >= 5, tuner)
    tuner.kill()
    tuner.wait()
    before = _journal(tmp_path)
    done = subprocess.run(
        command("--resume", "--json", "t.json"), cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert _journal(tmp_path)[: len(before)] == before
    result = json.loads((tmp_path / "t.json").read_text())
    workers, size, again = result["trials"]
    assert (workers["knob"], workers["from"], workers["to"], workers["decision"]) == ("num_workers", 0, 8, "keep")
    assert 1 < workers["ci_low"] <= workers["ratio"] <= workers["ci_high"]
    assert len(workers["rounds"]) >= 3
    assert workers["predicted_ratio"] > 1.5
    assert workers["prediction_error"] == pytest.approx(workers["predicted_ratio"] / workers["ratio"] - 1)
    for one, base in ((size, {}), (again, {"num_workers": 8})):  # beside workers it might have been possible
        assert (one["knob"], one["decision"], one["ratio"], one["base"]) == ("batch_size", "revert", None, base)
        assert "this loader's batch_sampler decides it" in one["reason"]
    assert result["reference"]["knobs"]["num_workers"] == 0
    assert result["final"]["knobs"] == {"num_workers": 8}
    assert (result["goal"]["feasible"], result["goal"]["reached"]) == (True, True)
    assert result["limits"]["compute_samples_per_s"] > result["limits"]["loader_samples_per_s"]
    assert result["noise"]["ratio_low"] <= 1 <= result["noise"]["ratio_high"]
    kept = tomllib.loads(Path(tmp_path, result["files"]["stoker_toml"]).read_text())
    assert kept == {"knobs": {"num_workers": 8}}
    record = Path(tmp_path, result["files"]["decision_md"]).read_text()
    heads = ("## Status", "## Context", "## Physical limits", "## Do not attempt", "## Alternatives", "## Next steps")
    for part in (*heads, "Hypothesis: asked for", "**keep**", "batch_size=8"):
        assert part in record
    assert sorted(path.name for path in tmp_path.iterdir()) == [".stoker", "t.json", "train.py"]
    again = subprocess.run(command("--resume"), cwd=tmp_path, capture_output=True, text=True, check=False)
    assert again.returncode == 2
    assert "no interrupted tuning" in again.stderr


@pytest.mark.long
@pytest.mark.timeout(900)
def test_without_a_word_from_the_user_the_findings_and_the_simulation_say_what_to_try(tmp_path: Path) -> None:
    options = ("--budget", "14m", "--steady", "2s", "--keep-results", "--json", "t.json")
    done = tune(tmp_path, *options, "train.py", script=PLAIN)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "t.json").read_text())
    first = result["trials"][0]
    assert "num_workers" in first["knobs"]  # alone, or kept alive where starting them takes long
    assert first["predicted_ratio"] > 1.5
    assert not any(trial["changes_results"] for trial in result["trials"])
    assert result["final"]["knobs"]["num_workers"] > 1
    assert result["final"]["ratio"] > 1.3
    assert result["findings"]
    assert "No knob does this" in Path(tmp_path, result["files"]["decision_md"]).read_text() or result["alternatives"]
    assert "predicted to bring 3 %" in result["context"]["ended"] or "the budget" in result["context"]["ended"]


CONFIGURED = """
import json, sys, time, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

options = json.load(open(sys.argv[1]))["train"]

class Slow(Dataset):
    def __len__(self):
        return 4000
    def __getitem__(self, i):
        return torch.full((8,), float(i % 7)), i % 2

model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=options["lr"])
for epoch in range(50):
    for x, y in DataLoader(Slow(), batch_size=4):
        time.sleep(options["pause"])
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
"""


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_key_of_a_config_file_becomes_a_patch_and_one_that_spoils_the_loss_is_not_kept(tmp_path: Path) -> None:
    text = '{"train": {\n  "pause": 0.2,\n  "lr": 0.001}}\n'
    (tmp_path / "exp.json").write_text(text)
    knobs = ["--knob", "train.pause=0.02", "--knob", "train.lr=100000.0"]
    done = tune(
        tmp_path, "--only", *knobs, "--config", "exp.json", "--budget", "14m", "--steady", "2s", "--json", "t.json",
        "train.py", "exp.json", script=CONFIGURED,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "t.json").read_text())
    pause, rate = result["trials"]
    assert (pause["from"], pause["to"], pause["decision"], pause["changes_results"]) == (0.2, 0.02, "keep", True)
    assert pause["loss"]["verdict"] == "same"
    assert (rate["decision"] != "keep", rate["loss"]["verdict"]) == (True, "differs")
    assert (tmp_path / "exp.json").read_text() == text
    patch = Path(tmp_path, result["files"]["config_patch"]).read_text()
    assert '-  "pause": 0.2,' in patch
    subprocess.run(["patch", "-p1"], input=patch, text=True, check=True, cwd=tmp_path, capture_output=True)
    assert (tmp_path / "exp.json").read_text() == text.replace("0.2,", "0.02,")


FLAT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from stoker import sim

data = TensorDataset(torch.ones(40000, 8), torch.zeros(40000, dtype=torch.long))
device = sim.Device(forward=0.1, backward=0.1, memory_bytes=100 << 20, fixed_bytes=20 << 20, sample_bytes=3 << 20)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0001)
device.place(model, optimizer)
for epoch in range(3):
    for x, y in DataLoader(data, batch_size=10):
        loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        loss.item()
"""


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_the_batch_grows_while_it_is_faster_and_stops_before_memory_is_short(tmp_path: Path) -> None:
    done = tune(
        tmp_path, "--only", "--knob", "batch_size=auto", "--budget", "24m", "--steady", "1s", "--json", "t.json",
        "train.py", script=FLAT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "t.json").read_text())
    decisions = {trial["to"]: trial["decision"] for trial in result["trials"]}
    assert (decisions[20], decisions[5], decisions[40]) == ("keep", "revert", "unsafe")
    refused = next(trial for trial in result["trials"] if trial["to"] == 40)
    assert "of device memory" in refused["reason"]
    assert refused["rounds"] == []
    assert result["final"]["knobs"] == {"batch_size": 20}
    assert next(trial for trial in result["trials"] if trial["to"] == 20)["loss"]["verdict"] == "same"


def _journal(tmp_path: Path) -> list[str]:
    found = list(tmp_path.glob(".stoker/runs/*/journal.jsonl"))
    return found[0].read_text().splitlines() if found else []


def _wait_for(condition: Callable[[], bool], process: "subprocess.Popen[bytes]") -> None:
    while not condition():
        assert process.poll() is None
        time.sleep(0.2)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--knob", "num_worker=2", "train.py"], "did you mean num_workers?"),
        (["--knob", "num_workers=-1", "train.py"], "num_workers is -1; expected 0 or more"),
        (["--knob", "num_workers", "train.py"], "--knob num_workers has no values"),
        (["--knob", "batch_size=8", "--keep-results", "train.py"], "batch_size can change what is trained"),
        (["--budget", "soon", "train.py"], "'soon' is not a duration"),
        (["--goal", "20m", "train.py"], "--goal 20m is not a goal"),
        (["train.py", "--batch", "{batch}"], "no knob fills {batch}"),
        (["--config", "none.yaml", "train.py", "none.yaml"], "none.yaml cannot be read: No such file"),
        (["--config", "train.py", "train.py"], "train.py is of no known kind"),
        (["--only", "train.py"], "--only was given, but no --knob"),
        (["--device-profile", "none", "train.py"], "no run is called none"),
        (["--device-profile", "none.json", "train.py"], "none.json is no device profile"),
        (["--resume"], "no interrupted tuning is there"),
        (["--findings", "none", "train.py"], "no run is called none"),
        (["--max-ram", "much", "train.py"], "'much' is not a size"),
        (["absent.py"], "absent.py does not exist"),
        ([], "no command was given"),
    ],
)
def test_wrong_usage_is_one_line_and_nothing_is_run(tmp_path: Path, arguments: list[str], says: str) -> None:
    done = tune(tmp_path, *arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / ".stoker").exists()


def test_a_command_that_fails_as_it_is_shows_its_own_words_and_tries_nothing(tmp_path: Path) -> None:
    done = tune(tmp_path, "train.py", script="import torch\nraise ValueError('my own mistake')\n")
    assert done.returncode == 3
    assert "ValueError: my own mistake" in done.stderr
    assert "nothing was tried" in done.stderr.splitlines()[-1]


def test_a_script_that_does_not_train_is_said(tmp_path: Path) -> None:
    done = tune(tmp_path, "train.py", script="import torch\n")
    assert done.returncode == 4
    assert "0 training steps were seen" in done.stderr


def test_a_budget_too_small_says_how_much_is_needed(tmp_path: Path) -> None:
    done = tune(tmp_path, "--budget", "30s", "--steady", "8s", "--only", "--knob", "num_workers=1", "train.py")
    assert done.returncode == 2
    assert "set --budget to that or more" in done.stderr or "set a larger --budget" in done.stderr


@pytest.mark.timeout(900)
def test_ctrl_c_leaves_no_process_and_a_record_of_what_was_measured(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(WAITING)
    mark = f"STOKER_TEST_MARK={tmp_path.name}-{os.getpid()}"
    name, value = mark.split("=")
    tuner = subprocess.Popen(
        command("--only", "--knob", "num_workers=1", "train.py"),
        cwd=tmp_path,
        env={**os.environ, name: value},
        stderr=subprocess.PIPE,
    )
    assert tuner.stderr is not None
    with tuner.stderr:
        # the second process of the reference runs when it is stopped: what the first measured is there
        _wait_for(lambda: bool(_journal(tmp_path) and list(tmp_path.glob(".stoker/runs/*/002/*.events"))), tuner)
        tuner.send_signal(signal.SIGINT)
        assert tuner.wait(400) == 130
        said = tuner.stderr.read().decode()
    assert "go on with: stoker tune --resume" in said
    (record,) = tmp_path.glob(".stoker/runs/*/decision.md")
    assert "Interrupted, not decided to its end" in record.read_text()
    marked = [p for p in psutil.process_iter() if _environment(p).get(name) == value]
    assert marked == []


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        environment: dict[str, str] = process.environ()
    except psutil.Error:
        return {}
    return environment


@pytest.mark.slow
def test_a_tuning_that_goes_on_cannot_be_gone_on_with_and_what_it_overwrote_comes_back(tmp_path: Path) -> None:
    best = tmp_path / "best.txt"
    best.write_text("mine")
    writes = WAITING.replace('torch.save(model.state_dict(), "model.pt")', 'open("best.txt", "w").write("a trial\'s")')
    (tmp_path / "train.py").write_text(writes.replace("return 4000", "return 8").replace("range(3)", "range(300)"))
    out = tmp_path / "out"
    words = ["--only", "--knob", "num_workers=1", "--out", str(out), "train.py"]
    tuner = subprocess.Popen(command(*words), cwd=tmp_path, stderr=subprocess.DEVNULL)
    _wait_for(lambda: bool(list(out.glob("00?/.stoker-original-*"))), tuner)  # the script has written over it
    second = tune(tmp_path, "--resume", script=(tmp_path / "train.py").read_text())
    assert second.returncode == 2
    assert "is still being tuned by another process" in second.stderr
    tuner.kill()
    tuner.wait()
    third = subprocess.Popen(command("--resume"), cwd=tmp_path, stderr=subprocess.DEVNULL)
    _wait_for(lambda: best.exists() and best.read_text() == "mine", third)
    third.send_signal(signal.SIGINT)
    third.wait(400)
    assert best.read_text() == "mine"


def test_findings_that_cannot_be_read_are_said_before_anything_runs(tmp_path: Path) -> None:
    row = Ledger(tmp_path / ".stoker").open_run(["python", "train.py"])
    done = tune(tmp_path, "--findings", row.run, "train.py")
    assert done.returncode == 2
    assert "holds no run" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("state", "options", "says"),
    [
        ("done", [], "no interrupted tuning is there"),
        ("done", ["--budget", "1m"], "go on with a --budget of more than 600 s"),
        ("interrupted", ["--only"], "leave --only out"),
        ("interrupted", ["--knob", "num_workers=2"], "leave --knob out"),
        ("interrupted", ["--steady", "3s", "--budget", "20m"], "leave --steady out"),
        ("failed", [], "no interrupted tuning is there"),  # it has measured nothing
    ],
)
def test_only_what_can_be_gone_on_with_is(tmp_path: Path, state: str, options: list[str], says: str) -> None:
    ledger = Ledger(tmp_path / ".stoker")
    row = ledger.open_run(["python", "train.py"])
    Request(words=("python", "train.py"), start={}, asked=(), search=(), budget_s=600.0, steady_s=6.0).write(
        row.directory
    )
    ledger.close_run(row.run, state, None, None)
    done = tune(tmp_path, "--resume", *options)
    assert done.returncode == 2
    assert says in done.stderr
