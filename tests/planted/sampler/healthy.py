"""Train with hard examples first: every batch is drawn without replacement from a pool."""

# A script as people write it: no torch.device, to the type checker, is what stands for one here.
# mypy: disable-error-code="call-overload, no-any-return, arg-type"
import argparse
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

from stoker import sim


class Scale(NamedTuple):
    rows: int
    columns: int
    batch: int
    workers: int
    device_s: float
    steps: int


SCALES = {"small": Scale(1_500_000, 8, 128, 0, 0.010, 900), "large": Scale(2_500_000, 4, 256, 1, 0.022, 500)}


class Draw(Sampler[list[int]]):
    def __init__(self, rows: int, batch: int) -> None:
        self.rows, self.batch = rows, batch

    def __len__(self) -> int:
        return self.rows // self.batch

    def __iter__(self) -> Iterator[list[int]]:
        order = np.random.default_rng(random.randrange(2**32)).permutation(self.rows)
        for start in range(0, self.rows - self.batch + 1, self.batch):
            yield order[start : start + self.batch].tolist()


class Table(Dataset[Any]):
    def __init__(self, path: Path, rows: int, columns: int) -> None:
        if not path.exists():
            np.save(path, np.random.default_rng(0).random((rows, columns), dtype=np.float32))
        self.values = np.load(path)

    def __getitems__(self, rows: list[int]) -> torch.Tensor:
        return torch.from_numpy(self.values[rows])


def keep(batch: torch.Tensor) -> torch.Tensor:
    return batch


def main(args: argparse.Namespace, root: Path) -> None:
    scale = SCALES[args.scale]
    random.seed(0)
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    loader = DataLoader(
        Table(root / "table.npy", scale.rows, scale.columns),
        batch_sampler=Draw(scale.rows, scale.batch),
        collate_fn=keep,
        num_workers=scale.workers,
        persistent_workers=scale.workers > 0,
    )
    device = sim.Device(forward=0.4 * scale.device_s, backward=0.4 * scale.device_s, optimizer=0.2 * scale.device_s)
    model = nn.Linear(scale.columns, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    device.place(model, optimizer)

    limit = min(args.steps, scale.steps)
    step, began = 0, time.perf_counter()
    for _ in range(args.epochs or 1):
        for rows in loader:
            x = rows.to(device, non_blocking=True)
            loss = (model(x).squeeze(1) - x.sum(dim=1)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step % 30 == 0:
                print(f"{step} {loss.item():.5f}")
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
