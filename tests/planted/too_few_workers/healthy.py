"""Train on point clouds that are rotated and jittered afresh each time."""

# A script as people write it: no torch.device, to the type checker, is what stands for one here.
# mypy: disable-error-code="call-overload, no-any-return, arg-type"
import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stoker import sim


class Scale(NamedTuple):
    clouds: int
    points: int
    batch: int
    workers: int
    device_s: float
    epochs: int


SCALES = {"small": Scale(640, 6000, 8, 2, 0.006, 20), "large": Scale(960, 20_000, 12, 2, 0.034, 8)}


class Clouds(Dataset[torch.Tensor]):
    def __init__(self, scale: Scale) -> None:
        self.points = scale.points
        self.centres = np.random.default_rng(0).normal(size=(scale.clouds, 3))

    def __len__(self) -> int:
        return len(self.centres)

    def __getitem__(self, index: int) -> torch.Tensor:
        rng = np.random.default_rng(int(torch.randint(0, 2**31, ())))
        cloud = self.centres[index] + rng.normal(size=(self.points, 3))
        angle = rng.uniform(0, 2 * np.pi)
        turn = np.array([[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0], [0, 0, 1]])
        cloud = cloud @ turn + rng.normal(0, 0.01, cloud.shape)
        order = np.argsort(np.arctan2(cloud[:, 1], cloud[:, 0]))
        return torch.from_numpy(cloud[order][:: self.points // 64].astype(np.float32))


def main(args: argparse.Namespace, root: Path) -> None:
    scale = SCALES[args.scale]
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    loader = DataLoader(
        Clouds(scale),
        batch_size=scale.batch,
        shuffle=True,
        num_workers=scale.workers,
        persistent_workers=scale.workers > 0,
    )
    device = sim.Device(forward=0.4 * scale.device_s, backward=0.5 * scale.device_s, optimizer=0.1 * scale.device_s)
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    device.place(model, optimizer)

    step, began = 0, time.perf_counter()
    for epoch in range(args.epochs or scale.epochs):
        for batch, cloud in enumerate(loader):
            if step >= args.steps:
                break
            x = cloud.to(device, non_blocking=True)
            loss = (model(x) - x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if batch % 20 == 19:
                print(f"epoch {epoch} batch {batch} loss {loss.item():.4f}")
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
