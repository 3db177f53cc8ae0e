"""Train on tables of sensor readings; each reading carries its channels and its calibration beside it."""

# A script as people write it: no torch.device, to the type checker, is what stands for one here.
# mypy: disable-error-code="call-overload, no-any-return, arg-type"
import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stoker import sim

Batch = Any


class Scale(NamedTuple):
    readings: int
    channels: int
    points: int
    batch: int
    workers: int
    device_s: float
    epochs: int


SCALES = {"small": Scale(12800, 24, 16, 256, 1, 0.012, 16), "large": Scale(4096, 8, 4000, 256, 2, 0.040, 24)}


class Readings(Dataset[Batch]):
    """Serves whole batches out of one array: there is nothing to compute."""

    def __init__(self, scale: Scale) -> None:
        rng = np.random.default_rng(3)
        self.values = rng.random((scale.readings, scale.channels, scale.points), dtype=np.float32)

    def __len__(self) -> int:
        return len(self.values)

    def __getitems__(self, indices: list[int]) -> Batch:
        block = self.values[indices]
        return torch.from_numpy(block)


def as_is(batch: Batch) -> Batch:
    return batch


def to_tensor(batch: Batch) -> torch.Tensor:
    return torch.as_tensor(batch)


class Trainer:
    def __init__(self, scale: Scale) -> None:
        third = scale.device_s / 3
        self.device = sim.Device(forward=third, backward=third, optimizer=third, copy_bytes_per_s=2e10)
        self.model = nn.Linear(scale.channels, 1)
        self.optimizer = torch.optim.Adagrad(self.model.parameters())
        self.device.place(self.model, self.optimizer)
        self.step = 0

    def run(self, loader: DataLoader[Batch], limit: int) -> None:
        for batch in loader:
            if self.step >= limit:
                break
            x = to_tensor(batch).to(self.device, non_blocking=True)
            loss = self.model(x[:, :, :16].mean(dim=2)).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.step += 1
        self.device.synchronize()


def main(args: argparse.Namespace, root: Path) -> None:
    scale = SCALES[args.scale]
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    loader = DataLoader(
        Readings(scale),
        batch_size=scale.batch,
        shuffle=True,
        collate_fn=as_is,
        num_workers=scale.workers,
        persistent_workers=True,
    )
    trainer = Trainer(scale)
    began = time.perf_counter()
    for _ in range(args.epochs or scale.epochs):
        trainer.run(loader, args.steps)
    print(f"{trainer.step} steps in {time.perf_counter() - began:.2f} s")


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", choices=["small", "large"], default="small")
    parser.add_argument("--steps", type=int, default=sys.maxsize, help="stop after this many optimizer steps")
    parser.add_argument("--epochs", type=int, default=None, help="passes over the data; the scale's own by default")
    parser.add_argument("--data", type=Path, default=None, help="where the data goes; a temporary directory by default")
    return parser.parse_args()


if __name__ == "__main__":
    options = parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        main(options, options.data or Path(scratch))
