"""Train a deep, narrow network of normalised residual blocks."""

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
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from stoker import sim


class Scale(NamedTuple):
    rows: int
    width: int
    blocks: int
    batch: int
    sample_s: float
    epochs: int


SCALES = {"small": Scale(4096, 16, 24, 8, 60e-6, 2), "large": Scale(8192, 24, 48, 16, 50e-6, 2)}


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, width)
        self.down = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(functional.gelu(self.up(self.norm(x))))


def main(args: argparse.Namespace, root: Path) -> None:
    scale = SCALES[args.scale]
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    rows = torch.randn(scale.rows, scale.width)
    order = torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(rows), scale.batch, drop_last=True)
    loader = DataLoader(TensorDataset(rows), sampler=order, batch_size=None)
    device = sim.Device(
        forward=sim.linear(200e-6, 0.4 * scale.sample_s),
        backward=sim.linear(300e-6, 0.6 * scale.sample_s),
        optimizer=200e-6,
    )
    model = nn.Sequential(*[Block(scale.width) for _ in range(scale.blocks)])
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    device.place(model, optimizer)

    step, began = 0, time.perf_counter()
    for epoch in range(args.epochs or scale.epochs):
        for (row,) in loader:
            if step >= args.steps:
                break
            x = row.to(device, non_blocking=True)
            loss = (model(x) - x.flip(1)).square().mean()
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
