"""Train an autoencoder and write a diary of the training."""

# A script as people write it: no torch.device, to the type checker, is what stands for one here.
# mypy: disable-error-code="call-overload, no-any-return, arg-type"
import argparse
import itertools
import logging
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
    batch: int
    lines: int
    every: int
    device_s: float
    steps: int


SCALES = {"small": Scale(20_000, 24, 64, 700, 1, 0.010, 700), "large": Scale(40_000, 64, 256, 2500, 2, 0.025, 400)}


def open_diary(path: Path) -> logging.Logger:
    diary = logging.getLogger("diary")
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    diary.addHandler(handler)
    diary.setLevel(logging.INFO)
    diary.propagate = False
    return diary


def main(args: argparse.Namespace, root: Path) -> None:
    scale = SCALES[args.scale]
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    rows = torch.randn(scale.rows, scale.columns)
    order = torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(rows), scale.batch, drop_last=True)
    loader = DataLoader(TensorDataset(rows, torch.arange(scale.rows)), sampler=order, batch_size=None)
    device = sim.Device(forward=0.3 * scale.device_s, backward=0.5 * scale.device_s, optimizer=0.2 * scale.device_s)
    model: nn.Module = nn.Sequential(nn.Linear(scale.columns, 8), nn.Tanh(), nn.Linear(8, scale.columns))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    model = device.place(model, optimizer)
    diary = open_diary(root / "diary.log")

    limit = min(args.steps, scale.steps)
    step, began = 0, time.perf_counter()
    for row, number in itertools.chain.from_iterable(loader for _ in range(args.epochs or 10)):
        x = row.to(device, non_blocking=True)
        loss = functional.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % scale.every == 0:
            for line in range(scale.lines):
                diary.info("step %d line %d row %d", step, line, number[line % scale.batch])
        if step % 25 == 0:
            print(f"step {step} loss {loss.item():.4f}")
        if step >= limit:
            break
    device.synchronize()
    print(f"{step} steps in {time.perf_counter() - began:.2f} s")
    logging.shutdown()
    (root / "diary.log").unlink()


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
