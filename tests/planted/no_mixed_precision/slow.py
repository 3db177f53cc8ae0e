"""Train a stack of large matrix multiplications on an accelerator with fast units for short numbers."""

# A script as people write it: no torch.device, to the type checker, is what stands for one here.
# mypy: disable-error-code="call-overload, no-any-return, arg-type"
import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stoker import sim


class Scale(NamedTuple):
    rows: int
    width: int
    batch: int
    flops_per_s: float
    epochs: int


SCALES = {"small": Scale(3200, 64, 32, 2.0e8, 5), "large": Scale(12_800, 96, 64, 4.0e8, 3)}


class Accelerator:
    """Matrix units eight times as fast in bf16 as in fp32, fed by memory that makes it three times in the end."""

    def __init__(self, scale: Scale) -> None:
        self.forward_s = 3 * 2 * scale.width**2 * scale.batch / scale.flops_per_s

    def forward(self, _: int) -> float:
        return self.forward_s / (3 if torch.is_autocast_enabled("cpu") else 1)

    def backward(self, batch: int) -> float:
        return 2 * self.forward(batch)


def main(args: argparse.Namespace, root: Path) -> None:
    scale = SCALES[args.scale]
    torch.manual_seed(0)
    rows = torch.randn(scale.rows, scale.width)
    loader = DataLoader(
        TensorDataset(rows), batch_size=scale.batch, shuffle=True, num_workers=1, persistent_workers=True
    )
    accelerator = Accelerator(scale)
    device = sim.Device(forward=accelerator.forward, backward=accelerator.backward, optimizer=1e-3)
    model: nn.Module = nn.Sequential(
        nn.Linear(scale.width, scale.width),
        nn.ReLU(),
        nn.Linear(scale.width, scale.width),
        nn.ReLU(),
        nn.Linear(scale.width, scale.width),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    model = device.place(model, optimizer)

    step, began = 0, time.perf_counter()
    for epoch in range(args.epochs or scale.epochs):
        for (row,) in loader:
            if step >= args.steps:
                break
            x = row.to(device, non_blocking=True)
            loss = (model(x) - x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 20 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
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
