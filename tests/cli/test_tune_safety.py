"""Knobs that would hurt the machine, offered to `stoker tune`: each is ended and recorded, and the next one tried."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

HARMFUL = """
import os, signal, sys, time, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

mode = sys.argv[1]
kept = []

def harm():
    if mode == "hog":
        kept.append(b"x" * (4 << 30))
    elif mode == "leak":
        kept.append(b"x" * (100 << 20))
    elif mode == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(10**6)
    elif mode == "hang":
        time.sleep(10**6)
    elif mode == "shm":
        with open(f"/dev/shm/{os.environ['STOKER_TEST_MARK']}", "ab") as file:
            file.write(b"x" * (100 << 20))
    elif mode == "forks":
        for _ in range(200):
            if not os.fork():
                time.sleep(10**6)
        os._exit(1)

data = TensorDataset(torch.randn(100000, 8), torch.randint(0, 2, (100000,)))
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in DataLoader(data, batch_size=4):
    time.sleep(0.02)
    harm()
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
"""
LIMIT = 1 << 30


@pytest.mark.long
@pytest.mark.timeout(1700)
def test_no_knob_can_hurt_the_machine(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(HARMFUL)
    mark = f"stoker-test-{os.getpid()}-{tmp_path.name}"
    knob = "mode=fine,hog,leak,shm,forks,hang,deaf"
    options = ["--only", "--knob", knob, "--max-ram", "1GiB", "--budget", "27m", "--steady", "1s", "--json", "t.json"]
    done = subprocess.run(
        [sys.executable, "-m", "stoker", "tune", *options, "train.py", "{mode}"],
        cwd=tmp_path, env={**os.environ, "STOKER_TEST_MARK": mark}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    trials = {trial["to"]: trial for trial in json.loads((tmp_path / "t.json").read_text())["trials"]}
    assert set(trials) == {"hog", "leak", "shm", "forks", "hang", "deaf"}
    assert {name: trial["decision"] for name, trial in trials.items()} == {
        "hog": "unsafe", "leak": "unsafe", "shm": "unsafe", "forks": "revert", "hang": "revert", "deaf": "revert",
    }  # fmt: skip
    assert all((trial["host_peak_bytes"] or 0) <= 1.25 * LIMIT for trial in trials.values())
    assert not Path("/dev/shm", mark).exists()
    assert [process for process in psutil.process_iter() if _marked(process, mark)] == []


def _marked(process: psutil.Process, mark: str) -> bool:
    try:
        return bool(process.environ().get("STOKER_TEST_MARK") == mark)
    except psutil.Error:
        return False
