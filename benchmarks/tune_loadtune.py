"""Two cases as loadtune wants them: it cannot tune a script, so their data set, model and step are handed to it.

LOADTUNE_CASE=records LOADTUNE_DATA=… python -m loadtune.cli tune benchmarks/tune_loadtune.py
"""

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from stoker import sim

ROOT = Path(__file__).resolve().parents[1]


def script(path: Path) -> ModuleType:
    """A training script as a module."""
    spec = importlib.util.spec_from_file_location("case_script", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["case_script"] = module
    spec.loader.exec_module(module)
    return module


def records() -> dict[str, Any]:
    case = script(ROOT / "examples" / "records" / "train.py")
    files = case.FileManager(sorted(Path(os.environ["LOADTUNE_DATA"]).glob("shard-*.npy")))
    device = sim.Device(forward=7.9e-3, backward=8.2e-3, optimizer=2.3e-3)
    criterion = device.place(case.PolicyValueLoss(), forward=5.4e-3)

    def step(model: Any, optimizer: Any, batch: Any, _: Any) -> Any:
        batch = case.to_device(batch, device)
        loss, *parts = criterion(*model(batch["board"], batch["hand"]), batch["move"], batch["value"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for part in (loss, *parts):
            part.item()
        return loss

    def optimizer_of(model: Any) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        device.place(model, optimizer)
        return optimizer

    data = case.RecordDataset(files, list(range(int(len(files) * 0.8))))
    return {"make_dataset": lambda: data, "make_model": case.Model, "train_step": step, "make_optimizer": optimizer_of,
            "default_batch_size": 750}  # fmt: skip


def too_few_workers() -> dict[str, Any]:
    case = script(ROOT / "tests" / "planted" / "too_few_workers" / "slow.py")
    scale = case.SCALES["small"]
    device = sim.Device(forward=0.4 * scale.device_s, backward=0.5 * scale.device_s, optimizer=0.1 * scale.device_s)

    def step(model: Any, optimizer: Any, batch: Any, _: Any) -> Any:
        x = batch.to(device, non_blocking=True)
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    def optimizer_of(model: Any) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        device.place(model, optimizer)
        return optimizer

    return {"make_dataset": lambda: case.Clouds(scale), "make_model": lambda: torch.nn.Linear(3, 3),
            "train_step": step, "make_optimizer": optimizer_of, "default_batch_size": scale.batch}  # fmt: skip


CASES = {"records": records, "too_few_workers": too_few_workers}


def get_workload() -> Any:
    """What loadtune asks for."""
    from loadtune import Workload

    name = os.environ["LOADTUNE_CASE"]
    return Workload(name=name, **CASES[name]())
