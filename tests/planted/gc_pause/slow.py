"""Train a recommender with the catalogue held as Python objects."""

# A script as people write it: no torch.device, to the type checker, is what stands for one here.
# mypy: disable-error-code="call-overload, no-any-return, arg-type"
import argparse
import gc
import itertools
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stoker import sim


class Scale(NamedTuple):
    articles: int
    features: int
    batch: int
    every: int
    device_s: float
    steps: int


SCALES = {"small": Scale(500_000, 3, 128, 40, 0.004, 1000), "large": Scale(800_000, 2, 512, 30, 0.010, 900)}


def make_catalogue(articles: int) -> dict[int, list[Any]]:
    draw = random.Random(0)
    return {i: [draw.random(), [i % 7, i % 11], {"shelf": i % 100}] for i in range(articles)}


def main(args: argparse.Namespace, root: Path) -> None:
    scale = SCALES[args.scale]
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    catalogue = make_catalogue(scale.articles)
    prices = torch.tensor([article[0] for article in catalogue.values()])
    order = torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(prices), scale.batch, drop_last=True)
    loader = DataLoader(TensorDataset(prices), sampler=order, batch_size=None)
    device = sim.Device(forward=0.3 * scale.device_s, backward=0.5 * scale.device_s, optimizer=0.2 * scale.device_s)
    model = nn.Linear(1, scale.features)
    optimizer = torch.optim.Adam(model.parameters())
    device.place(model, optimizer)

    limit = min(args.steps, scale.steps)
    step, began = 0, time.perf_counter()
    for (price,) in itertools.chain.from_iterable(loader for _ in range(args.epochs or 10)):
        loss = model(price[:, None].to(device, non_blocking=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % scale.every == 0:
            gc.collect()
            print(f"step {step} loss {loss.item():.4f}")
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
