"""Train a regressor and measure it on held-out data as it goes."""

# A script as people write it: no torch.device, to the type checker, is what stands for one here.
# mypy: disable-error-code="call-overload, no-any-return, arg-type"
import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from stoker import sim


class Scale(NamedTuple):
    rows: int
    held_out: int
    columns: int
    batch: int
    held_out_batch: int
    every: int
    device_s: float
    epochs: int


SCALES = {
    "small": Scale(12_800, 1600, 16, 64, 16, 50, 0.014, 4),
    "large": Scale(51_200, 6000, 48, 256, 40, 50, 0.036, 1),
}


class Regression:
    def __init__(self, scale: Scale) -> None:
        self.model = nn.Sequential(nn.Linear(scale.columns, 16), nn.ReLU(), nn.Linear(16, 1), nn.Flatten(0))
        self.optimizer = torch.optim.Adam(self.model.parameters())
        part = scale.device_s / 10
        self.device = sim.Device(forward=sim.linear(2 * part, part / scale.batch), backward=6 * part, optimizer=part)
        self.device.place(self.model, self.optimizer)

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        guess = self.model(x.to(self.device, non_blocking=True))
        return functional.mse_loss(guess, y.to(self.device, non_blocking=True))

    def fit(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        self.loss(x, y).backward()
        self.optimizer.step()

    @torch.no_grad()
    def evaluate(self, loader: DataLoader[Any]) -> float:
        self.model.eval()
        total = torch.zeros(())
        for x, y in loader:
            total = total + self.loss(x, y)
        self.model.train()
        return total.item() / len(loader)


def table(rows: int, columns: int, batch: int) -> DataLoader[Any]:
    x = torch.randn(rows, columns)
    data = TensorDataset(x, x.mean(dim=1))
    order = torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(data), batch, drop_last=True)
    return DataLoader(data, sampler=order, batch_size=None)


def main(args: argparse.Namespace, root: Path) -> None:
    scale = SCALES[args.scale]
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    regression = Regression(scale)
    loader = table(scale.rows, scale.columns, scale.batch)
    held_out = table(scale.held_out, scale.columns, scale.held_out_batch)
    step, began = 0, time.perf_counter()
    for epoch in range(args.epochs or scale.epochs):
        for x, y in loader:
            if step >= args.steps:
                break
            regression.fit(x, y)
            step += 1
            if step % scale.every == 0:
                print(f"epoch {epoch} step {step} held-out loss {regression.evaluate(held_out):.4f}")
    regression.device.synchronize()
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
