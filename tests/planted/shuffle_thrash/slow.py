"""Train on rows of many Parquet files; the file last used is kept."""

# A script as people write it: no torch.device, to the type checker, is what stands for one here.
# mypy: disable-error-code="call-overload, no-any-return, arg-type"
import argparse
import functools
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from stoker import sim


class Scale(NamedTuple):
    files: int
    rows: int
    columns: int
    batch: int
    workers: int
    device_s: float
    epochs: int
    steps: int


SCALES = {"small": Scale(12, 500, 12, 16, 2, 0.005, 1, 375), "large": Scale(30, 1000, 24, 40, 1, 0.024, 1, 150)}


def make_files(root: Path, scale: Scale) -> list[Path]:
    paths = [root / f"part-{i:03d}.parquet" for i in range(scale.files)]
    for i, path in enumerate(paths):
        if not path.exists():
            rng = np.random.default_rng(i)
            columns = {f"c{j}": rng.random(scale.rows, dtype=np.float32) for j in range(scale.columns)}
            pq.write_table(pa.table(columns), path)
    return paths


@functools.lru_cache(maxsize=1)
def load(path: Path) -> np.ndarray[Any, Any]:
    table = pq.read_table(path, use_threads=False)
    return np.stack([column.to_numpy() for column in table.columns], axis=1)


class Rows(Dataset[torch.Tensor]):
    def __init__(self, paths: list[Path], rows: int) -> None:
        self.paths, self.rows = paths, rows

    def __len__(self) -> int:
        return len(self.paths) * self.rows

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(load(self.paths[index // self.rows])[index % self.rows])


def main(args: argparse.Namespace, root: Path) -> None:
    scale = SCALES[args.scale]
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    data = Rows(make_files(root, scale), scale.rows)
    loader = DataLoader(
        data, batch_size=scale.batch, shuffle=True, num_workers=scale.workers, persistent_workers=True, drop_last=True
    )
    device = sim.Device(forward=0.3 * scale.device_s, backward=0.6 * scale.device_s, optimizer=0.1 * scale.device_s)
    model = nn.Linear(scale.columns, 1)
    optimizer = torch.optim.Adam(model.parameters())
    device.place(model, optimizer)

    step, began = 0, time.perf_counter()
    for epoch in range(args.epochs or scale.epochs):
        for row in loader:
            if step >= min(args.steps, scale.steps):
                break
            x = row.to(device, non_blocking=True)
            loss = functional.huber_loss(model(x)[:, 0], x[:, 0])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 25 == 0:
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
