"""`stoker tune` on real scripts. The one whose knob matters waits instead of working, so that cores do not matter."""

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import psutil
import pytest

WAITING = """
import time, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 4000
    def __getitem__(self, i):
        time.sleep(0.02)
        return torch.randn(8), i % 2

model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for x, y in DataLoader(Slow(), batch_size=4):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
    torch.save(model.state_dict(), "model.pt")
"""


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "stoker", "tune", *arguments]


def tune(tmp_path: Path, *arguments: str, script: str = WAITING) -> subprocess.CompletedProcess[str]:
    (tmp_path / "train.py").write_text(script)
    return subprocess.run(command(*arguments), capture_output=True, text=True, check=False, cwd=tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_knob_that_helps_is_kept_and_one_that_cannot_be_set_is_reverted(tmp_path: Path) -> None:
    knobs = ["--knob", "num_workers=4", "--knob", "prefetch_factor=3"]
    done = tune(
        tmp_path, *knobs, "--budget", "8m", "--steady", "2s", "--goal", "epoch=9h", "--json", "t.json", "train.py"
    )
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "t.json").read_text())
    workers, prefetch = result["trials"]
    assert (workers["knob"], workers["from"], workers["to"], workers["decision"]) == ("num_workers", 0, 4, "keep")
    assert 1 < workers["ci_low"] <= workers["ratio"] <= workers["ci_high"]
    assert (prefetch["decision"], prefetch["ratio"]) == ("revert", None)
    assert "needs at least one worker" in prefetch["reason"]
    assert result["reference"]["knobs"]["num_workers"] == 0
    assert result["final"]["knobs"] == {"num_workers": 4}
    assert result["goal"]["feasible"] is True
    assert result["noise"]["ratio_low"] <= 1 <= result["noise"]["ratio_high"]
    kept = tomllib.loads(Path(tmp_path, result["files"]["stoker_toml"]).read_text())
    assert kept == {"knobs": {"num_workers": 4}}
    record = Path(tmp_path, result["files"]["decision_md"]).read_text()
    for part in ("## Context", "Hypothesis: asked for", "**keep**", "## Do not attempt", "prefetch_factor=3"):
        assert part in record
    assert sorted(path.name for path in tmp_path.iterdir()) == [".stoker", "t.json", "train.py"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--knob", "num_worker=2", "train.py"], "did you mean num_workers?"),
        (["--knob", "num_workers=-1", "train.py"], "num_workers is -1; expected 0 or more"),
        (["--knob", "num_workers", "train.py"], "--knob num_workers has no values"),
        (["--knob", "batch_size=8", "--keep-results", "train.py"], "batch_size can change what is trained"),
        (["--budget", "soon", "train.py"], "'soon' is not a duration"),
        (["--goal", "20m", "train.py"], "--goal 20m is not a goal"),
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
    done = tune(tmp_path, "--budget", "30s", "--steady", "8s", "--knob", "num_workers=1", "train.py")
    assert done.returncode == 2
    assert "set --budget to that or more" in done.stderr or "set a larger --budget" in done.stderr


def test_ctrl_c_leaves_no_process(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(WAITING)
    mark = f"STOKER_TEST_MARK={tmp_path.name}-{os.getpid()}"
    name, value = mark.split("=")
    tuner = subprocess.Popen(
        command("--knob", "num_workers=1", "train.py"),
        cwd=tmp_path,
        env={**os.environ, name: value},
        stderr=subprocess.PIPE,
    )
    assert tuner.stderr is not None
    with tuner.stderr:
        deadline = time.monotonic() + 120
        while not list(tmp_path.glob(".stoker/runs/*/001/*.events")) and time.monotonic() < deadline:
            time.sleep(0.2)
        tuner.send_signal(signal.SIGINT)
        assert tuner.wait(60) == 130
    marked = [p for p in psutil.process_iter() if _environment(p).get(name) == value]
    assert marked == []


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        environment: dict[str, str] = process.environ()
    except psutil.Error:
        return {}
    return environment
