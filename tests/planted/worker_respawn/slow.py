"""Train on a small set of simulated spectra: short epochs, each worker keeps a table of reference lines."""

# A script as people write it: no torch.device, to the type checker, is what stands for one here.
# mypy: disable-error-code="call-overload, no-any-return, arg-type"
import argparse
import math
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
    spectra: int
    bins: int
    lines: int
    batch: int
    method: str
    device_s: float
    epochs: int


SCALES = {
    "small": Scale(640, 256, 260_000, 32, "fork", 0.020, 30),
    "large": Scale(2560, 512, 60_000, 32, "spawn", 0.030, 6),
}


class Spectra(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    def __init__(self, count: int, bins: int, lines: int) -> None:
        self.count, self.bins, self.lines = count, bins, lines
        self.table: list[float] | None = None

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self.table is None:
            self.table = [math.sin(i) * math.exp(-i / self.lines) for i in range(4 * self.lines)]
        rng = np.random.default_rng()
        spectrum = rng.normal(self.table[index], 1, self.bins).astype(np.float32)
        return torch.from_numpy(spectrum), torch.tensor(spectrum.mean())


def train_epoch(loader: Any, model: nn.Module, optimizer: torch.optim.Optimizer, device: Any, left: int) -> int:
    count = 0
    for spectrum, height in loader:
        if count >= left:
            break
        optimizer.zero_grad()
        guess = model(spectrum.to(device, non_blocking=True))
        loss = functional.l1_loss(guess[:, 0], height.to(device, non_blocking=True))
        loss.backward()
        optimizer.step()
        count += 1
    device.synchronize()
    return count


def main(args: argparse.Namespace, root: Path) -> None:
    scale = SCALES[args.scale]
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    loader = DataLoader(
        Spectra(scale.spectra, scale.bins, scale.lines),
        batch_size=scale.batch,
        shuffle=True,
        num_workers=2,
        multiprocessing_context=scale.method,
    )
    device = sim.Device(forward=0.3 * scale.device_s, backward=0.5 * scale.device_s, optimizer=0.2 * scale.device_s)
    model = nn.Linear(scale.bins, 1)
    optimizer = torch.optim.Adam(model.parameters())
    device.place(model, optimizer)
    steps, began = 0, time.perf_counter()
    for _ in range(args.epochs or scale.epochs):
        if steps < args.steps:
            steps += train_epoch(loader, model, optimizer, device, args.steps - steps)
    print(f"{steps} steps in {time.perf_counter() - began:.2f} s")


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
