"""Train on detector events: lists of hits (sensor, time, charge) that become one grid for each event."""

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
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from stoker import sim

Event = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], float]


class Scale(NamedTuple):
    events: int
    hits: int
    sensors: int
    batch: int
    workers: int
    device_s: float
    epochs: int


SCALES = {"small": Scale(2400, 2000, 96, 48, 1, 0.012, 16), "large": Scale(2560, 4000, 200, 128, 2, 0.036, 20)}


class Events(Dataset[Event]):
    def __init__(self, path: Path, scale: Scale) -> None:
        if not path.exists():
            rng = np.random.default_rng(1)
            np.save(path, rng.integers(0, scale.sensors, (scale.events, scale.hits), dtype=np.int16))
        self.sensors = np.load(path)
        self.charges = np.random.default_rng(2).random((scale.events, scale.hits), dtype=np.float32)

    def __len__(self) -> int:
        return len(self.sensors)

    def __getitem__(self, index: int) -> Event:
        return self.sensors[index], self.charges[index], float(index % 7)


class Batcher:
    """Sums the charge of every sensor of every event."""

    def __init__(self, sensors: int) -> None:
        self.sensors = sensors

    def __call__(self, events: list[Event]) -> tuple[torch.Tensor, torch.Tensor]:
        grid = [[0.0] * self.sensors for _ in events]
        for row, (sensors, charges, _) in enumerate(events):
            for sensor, charge in zip(sensors, charges, strict=True):
                grid[row][int(sensor)] += float(charge)
        return torch.tensor(grid), torch.tensor([target for _, _, target in events])


def main(args: argparse.Namespace, root: Path) -> None:
    scale = SCALES[args.scale]
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    loader = DataLoader(
        Events(root / "sensors.npy", scale),
        batch_size=scale.batch,
        shuffle=True,
        num_workers=scale.workers,
        collate_fn=Batcher(scale.sensors),
        drop_last=True,
        persistent_workers=True,
    )
    device = sim.Device(forward=0.3 * scale.device_s, backward=0.6 * scale.device_s, optimizer=0.1 * scale.device_s)
    model: nn.Module = nn.Sequential(nn.Linear(scale.sensors, 16), nn.GELU(), nn.Linear(16, 1))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    model = device.place(model, optimizer)

    step, began = 0, time.perf_counter()
    for epoch in range(args.epochs or scale.epochs):
        for number, (grid, target) in enumerate(loader):
            if step >= args.steps:
                break
            optimizer.zero_grad()
            guess = model(grid.to(device, non_blocking=True)).squeeze(1)
            loss = functional.mse_loss(guess, target.to(device, non_blocking=True))
            loss.backward()
            optimizer.step()
            step += 1
            if number % 20 == 0:
                print(f"epoch {epoch} batch {number} loss {loss.item():.3f}")
    device.synchronize()
    print(f"{step} steps in {time.perf_counter() - began:.2f} s")


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
