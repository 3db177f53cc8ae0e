import gc
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import stoker


def touched() -> dict[str, object]:
    """Everything the observer replaces, as it is now."""
    return {
        "call": nn.Module.__call__,
        "module zero": nn.Module.zero_grad,
        "iter": DataLoader.__iter__,
        "next": torch.utils.data.dataloader._BaseDataLoaderIter.__next__,
        "fetch": torch.utils.data._utils.fetch._MapDatasetFetcher.fetch,
        "loop": torch.utils.data._utils.worker._worker_loop,
        "backward": torch.autograd.backward,
        "grad": torch.autograd.grad,
        "zero": torch.optim.Optimizer.zero_grad,
        "enter": torch.no_grad.__enter__,
        "save": torch.save,
        "load": torch.load,
        "exit": os._exit,
        "print": print,
        "scaler": torch.amp.GradScaler.step,
        "finders": list(sys.meta_path),
        "collector": list(gc.callbacks),
    }


def train(loader: object, steps: int = 0) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:  # type: ignore[attr-defined]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def batches() -> DataLoader[object]:
    return DataLoader(TensorDataset(torch.randn(80, 4), torch.randint(0, 2, (80,))), batch_size=4)


def report(directory: Path, cwd: Path) -> dict[str, object]:
    words = [sys.executable, "-m", "stoker", "report", str(directory), "--json", "-"]
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=True)
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_a_watch_sees_a_loop_and_restores_all_it_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = touched()
    with stoker.watch("my run") as w:
        assert touched() != before
        train(w(batches()))
    assert touched() == before
    seen = report(w.directory, tmp_path)
    assert (seen["steps"], seen["steps_per_epoch"]) == (20, 20)


def test_any_iterable_is_a_loader_when_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    mine = [(torch.randn(4, 4), torch.randint(0, 2, (4,))) for _ in range(12)]
    with stoker.watch() as w:
        train(w(mine))
    seen = report(w.directory, tmp_path)
    assert (seen["steps"], seen["steps_per_epoch"]) == (12, 12)


def test_an_exception_inside_passes_and_everything_is_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = touched()
    with pytest.raises(ZeroDivisionError), stoker.watch():
        _ = 1 / 0
    assert touched() == before
