"""Train a classifier and keep its confusion matrix while training."""

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
    columns: int
    classes: int
    batch: int
    device_s: float
    epochs: int


SCALES = {"small": Scale(32_000, 32, 10, 512, 0.010, 16), "large": Scale(128_000, 16, 40, 2048, 0.024, 10)}


class Meter:
    """Counts which class was taken for which."""

    def __init__(self, classes: int) -> None:
        self.classes = classes
        self.table = torch.zeros(classes * classes)
        self.loss = torch.zeros(())

    def add(self, scores: torch.Tensor, labels: torch.Tensor, loss: torch.Tensor) -> None:
        places = labels * self.classes + scores.argmax(dim=1)
        self.table = self.table + torch.bincount(places, minlength=self.classes**2)
        self.loss = self.loss + loss.detach()

    def report(self) -> str:
        table = self.table.cpu().view(self.classes, self.classes)
        return f"accuracy {table.trace() / table.sum():.3f} loss {self.loss.item():.3f}"


def main(args: argparse.Namespace, root: Path) -> None:
    scale = SCALES[args.scale]
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    table, labels = torch.randn(scale.rows, scale.columns), torch.randint(0, scale.classes, (scale.rows,))
    order = torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(table), scale.batch, drop_last=True)
    loader = DataLoader(TensorDataset(table, labels), sampler=order, batch_size=None)
    device = sim.Device(forward=0.4 * scale.device_s, backward=0.4 * scale.device_s, optimizer=0.2 * scale.device_s)
    model = nn.Linear(scale.columns, scale.classes)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    device.place(model, optimizer)

    step, began = 0, time.perf_counter()
    for epoch in range(args.epochs or scale.epochs):
        meter = Meter(scale.classes)
        for x, y in loader:
            if step >= args.steps:
                break
            features, targets = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            scores = model(features)
            loss = functional.cross_entropy(scores, targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            meter.add(scores, targets, loss)
            step += 1
        print(f"epoch {epoch}: {meter.report()}")
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
