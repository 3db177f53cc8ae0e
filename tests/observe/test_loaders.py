"""Which loader is which: one that is made anew for every epoch is still the same one."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from stoker.observe import loaders
from stoker.observe.options import Options
from stoker.observe.pace import Pace
from stoker.observe.patches import Patches
from stoker.observe.recorder import Recorder

Numbers = Callable[[], list[int]]


@pytest.fixture
def numbers(tmp_path: Path) -> Iterator[Numbers]:
    """The numbers of the loaders that were noted so far."""
    recorder, patches = Recorder(tmp_path), Patches()
    loaders.install(torch, recorder, patches, Pace(Options(whole=True), recorder, tmp_path))
    yield lambda: [note["loader"] for note in recorder._notes if note["note"] == "loader"]
    patches.restore()
    recorder.close()


def make(**how: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.zeros(8)), **{"batch_size": 2, **how})


def run(loader: DataLoader[Any], most: int = 99) -> None:
    for step, _ in enumerate(loader):
        if step == most:
            break


def test_a_loader_that_is_made_anew_for_every_epoch_is_one(numbers: Numbers) -> None:
    for _ in range(4):
        for _ in enumerate(make()):
            pass
    for _ in range(3):
        run(make())
        run(make(), most=1)  # left early: its pass is over too
    assert numbers() == [1, 2]  # two lines


def test_one_that_is_kept_is_one(numbers: Numbers) -> None:
    kept = make()
    for _ in range(3):
        run(kept)
    assert numbers() == [1]


def test_two_at_a_time_are_two_however_alike(numbers: Numbers) -> None:
    for _ in range(2):
        for _ in zip(make(), make(), strict=True):
            pass
    assert len(numbers()) >= 2


def test_training_and_validation_by_the_same_line_are_two(numbers: Numbers) -> None:
    for _ in range(2):
        run(make())
        with torch.no_grad():
            run(make())
    assert numbers() == [1, 2]


def test_other_settings_make_another_one(numbers: Numbers) -> None:
    for size in (2, 4, 2, 4):
        run(make(batch_size=size))
    assert numbers() == [1, 2]


def test_two_data_sets_that_are_alike_are_two_loaders_however_alike_those_are(numbers: Numbers) -> None:
    """A trainer makes its loaders anew and runs both through one line, with gradients on or off as it likes."""
    train, check = TensorDataset(torch.zeros(8)), TensorDataset(torch.zeros(8))
    for _ in range(3):
        for data in (train, check):
            run(DataLoader(data, batch_size=2))
    assert numbers() == [1, 2]
