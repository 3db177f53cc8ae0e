"""Train on compressed shards in their order; each worker keeps the shard it last unpacked."""

# A script as people write it: no torch.device, to the type checker, is what stands for one here.
# mypy: disable-error-code="call-overload, no-any-return, arg-type"
import argparse
import functools
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stoker import sim


class Scale(NamedTuple):
    shards: int
    rows: int
    columns: int
    batch: int
    workers: int
    device_s: float
    epochs: int


SCALES = {"small": Scale(24, 1024, 1600, 64, 12, 0.005, 4), "large": Scale(30, 2048, 2000, 64, 20, 0.006, 2)}


def make_shards(root: Path, scale: Scale) -> list[Path]:
    paths = [root / f"shard{i:03d}.z" for i in range(scale.shards)]
    for i, path in enumerate(paths):
        if not path.exists():
            seed = np.random.default_rng(i).integers(0, 9, (scale.rows, scale.columns // 16), dtype=np.uint8)
            path.write_bytes(zlib.compress(np.repeat(seed, 16, axis=1).tobytes(), 1))
    return paths


@functools.lru_cache(maxsize=1)
def unpack(path: Path, columns: int) -> np.ndarray[Any, Any]:
    values = np.frombuffer(zlib.decompress(path.read_bytes()), dtype=np.uint8).reshape(-1, columns)
    return values / np.maximum(values.std(axis=1, keepdims=True), 1e-3)


class Rows(Dataset[torch.Tensor]):
    def __init__(self, paths: list[Path], scale: Scale) -> None:
        self.paths, self.scale = paths, scale

    def __len__(self) -> int:
        return len(self.paths) * self.scale.rows

    def __getitems__(self, rows: list[int]) -> list[torch.Tensor]:
        block = unpack(self.paths[rows[0] // self.scale.rows], self.scale.columns)
        first = rows[0] % self.scale.rows
        return [torch.from_numpy(row.astype(np.float32)) for row in block[first : first + len(rows), ::50]]


def main(args: argparse.Namespace, root: Path) -> None:
    scale = SCALES[args.scale]
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    rows = Rows(make_shards(root, scale), scale)
    loader = DataLoader(rows, batch_size=scale.batch, num_workers=scale.workers, persistent_workers=True)
    device = sim.Device(forward=0.4 * scale.device_s, backward=0.5 * scale.device_s, optimizer=0.1 * scale.device_s)
    model = nn.Linear(len(range(0, scale.columns, 50)), 4)
    optimizer = torch.optim.Adam(model.parameters())
    device.place(model, optimizer)

    step, began = 0, time.perf_counter()
    for _ in range(args.epochs or scale.epochs):
        for row in loader:
            if step >= args.steps:
                break
            loss = model(row.to(device, non_blocking=True)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step % 32 == 0:
                print(f"step {step} loss {loss.item():.4f}")
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
