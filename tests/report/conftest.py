"""One real run for all tests of pages."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import LIGHT

TRAIN = (
    LIGHT
    + """
import time, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from stoker import sim

class Waiting(Dataset):
    def __len__(self):
        return 160

    def __getitem__(self, i):
        time.sleep(0.008 if i % 40 else 0.2)
        return torch.randn(8), 1

def train():
    device = sim.Device(forward=2e-3, backward=3e-3, optimizer=1e-3)
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    device.place(model, optimizer)
    for _ in range(2):
        for x, y in DataLoader(Waiting(), batch_size=4, num_workers=2):
            loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss.item()

if __name__ == "__main__":
    train()
"""
)


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which the doctor has seen a whole training, as a user runs it."""
    place = tmp_path_factory.mktemp("home")
    (place / "train.py").write_text(TRAIN)
    command = [sys.executable, "-m", "stoker", "doctor", "--whole", "train.py"]
    done = subprocess.run(command, cwd=place, env=os.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (place / "said.txt").write_text(done.stderr)
    return place


@pytest.fixture(scope="session")
def run(home: Path) -> Path:
    (directory,) = (home / ".stoker" / "runs").iterdir()
    return directory
