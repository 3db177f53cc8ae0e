"""`stoker predict` on a run that `stoker doctor` recorded."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import LIGHT

SCRIPT = (
    LIGHT
    + """
import time, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 160
    def __getitem__(self, i):
        time.sleep(0.075)  # far longer than what a busy machine adds
        return torch.randn(8), i % 2

model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(1):
    for x, y in DataLoader(Slow(), batch_size=4):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
"""
)


def stoker(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "stoker", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=place)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("predict")
    (place / "train.py").write_text(SCRIPT)
    done = stoker(place, "doctor", "--whole", "--no-html", "train.py")
    assert done.returncode == 0, done.stderr
    return place


def test_more_workers_are_predicted_to_help_a_loader_that_waits(recorded: Path) -> None:
    done = stoker(recorded, "predict", "last", "--set", "num_workers=4", "--json", "p.json")
    assert done.returncode == 0, done.stderr
    predicted = json.loads((recorded / "p.json").read_text())
    assert predicted["ratio"] > 1.05
    assert predicted["step_s"] < predicted["measured_step_s"]
    assert predicted["memory_bytes"] > 0
    assert "num_workers=4" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["last"], "nothing would change"),
        (["last", "--set", "amp=bf16"], "amp cannot be predicted"),
        (["last", "--set", "workers=1"], "no knob is called workers"),
        (["nowhere", "--cores", "2"], "no run is called nowhere"),
        (["last", "--latency", "nan"], "no number to reckon with"),
        (["last", "--cores", "inf"], "no number to reckon with"),
        (["last", "--set", "prefetch_factor=4"], "prefetch_factor means nothing without workers"),
        (["last", "--set", "batch_size=100000"], "the data set has 160 samples"),
        (["last", "--device-speed", "2"], "the run had no device"),
    ],
)
def test_wrong_usage_is_one_line(recorded: Path, arguments: list[str], says: str) -> None:
    done = stoker(recorded, "predict", *arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_larger_batch_takes_more_memory_also_where_the_loop_makes_it_itself(recorded: Path) -> None:
    takes = []
    for size in ("8", "160"):
        done = stoker(recorded, "predict", "last", "--set", f"batch_size={size}", "--json", "p.json")
        assert done.returncode == 0, done.stderr
        takes.append(json.loads((recorded / "p.json").read_text())["memory_bytes"])
    assert takes[1] > takes[0]


def test_a_billion_workers_are_simulated_too(recorded: Path) -> None:
    done = stoker(recorded, "predict", "last", "--set", "num_workers=1000000000")
    assert done.returncode == 0, done.stderr


def test_a_dash_is_stdout_and_nothing_else_is_said_there(recorded: Path) -> None:
    done = stoker(recorded, "predict", "last", "--set", "num_workers=2", "--json", "-")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["knobs"] == {"num_workers": 2}
    assert not (recorded / "-").exists()
