"""Train a click model; the visits are kept by the data set, the workers are spawned, as on macOS."""

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


class Scale(NamedTuple):
    visits: int
    pages: int
    batch: int
    workers: int
    device_s: float
    steps: int


SCALES = {"small": Scale(300_000, 500, 64, 2, 0.012, 1100), "large": Scale(420_000, 4000, 256, 1, 0.030, 550)}


class Visits(Dataset[tuple[torch.Tensor, float]]):
    def __init__(self, path: Path, scale: Scale) -> None:
        if not path.exists():
            rng = np.random.default_rng(5)
            np.save(path, rng.random((scale.visits, 4), dtype=np.float32))
        self.path, self.pages, self.count = path, scale.pages, scale.visits
        self.table: Any = None

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, float]:
        if self.table is None:
            self.table = np.load(self.path, mmap_mode="r")
        a, b, c, d = self.table[index].tolist()
        return torch.tensor([int(a * self.pages) / self.pages, b, int(c * 50) / 50, int(d * 50) / 50]), float(a > b)


def main(args: argparse.Namespace, root: Path) -> None:
    scale = SCALES[args.scale]
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    visits = Visits(root / "visits.npy", scale)
    loader = DataLoader(
        visits,
        batch_size=scale.batch,
        shuffle=True,
        num_workers=scale.workers,
        multiprocessing_context="spawn",
        persistent_workers=True,
    )
    device = sim.Device(forward=scale.device_s / 3, backward=scale.device_s / 3, optimizer=scale.device_s / 3)
    model: nn.Module = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model = device.place(model, optimizer)

    limit = min(args.steps, scale.steps)
    step, began = 0, time.perf_counter()
    for _ in range(args.epochs or 100):
        for features, clicked in loader:
            score = model(features.to(device, non_blocking=True)).squeeze(1)
            loss = functional.binary_cross_entropy_with_logits(score, clicked.float().to(device, non_blocking=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 50 == 0:
                print(f"step {step} loss {loss.item():.3f}")
            if step >= limit:
                break
        if step >= limit:
            break
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
