"""Train on fixed-size game records in memory-mapped shards."""

# A script as people write it: no torch.device, to the type checker, is what stands for one here.
# mypy: disable-error-code="call-overload, no-any-return, arg-type"
import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stoker import sim

RECORD = np.dtype([("id", "u8"), ("board", "u1", (81,)), ("hand", "u1", (14,)), ("result", "f2")])


class Scale(NamedTuple):
    records: int
    shards: int
    batch: int
    device_s: float
    epochs: int


SCALES = {"small": Scale(120_000, 8, 512, 0.0045, 4), "large": Scale(240_000, 20, 2048, 0.025, 5)}


def make_shards(root: Path, scale: Scale) -> list[Path]:
    paths = [root / f"games{i:02d}.npy" for i in range(scale.shards)]
    for i, path in enumerate(paths):
        if not path.exists():
            rng = np.random.default_rng(i)
            block = np.zeros(scale.records // scale.shards, RECORD)
            block["board"] = rng.integers(0, 30, block["board"].shape)
            block["result"] = rng.integers(0, 2, len(block))
            np.save(path, block)
    return paths


class Games(Dataset[Any]):
    def __init__(self, paths: list[Path]) -> None:
        self.shards = [np.load(path, mmap_mode="r") for path in paths]
        self.ends = np.cumsum([len(shard) for shard in self.shards])

    def __len__(self) -> int:
        return int(self.ends[-1])

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        shard = int(np.searchsorted(self.ends, index, side="right"))
        record = self.shards[shard][index - int(self.ends[shard])]
        features = np.concatenate([record["board"], record["hand"]])
        return torch.from_numpy(features), torch.tensor(float(record["result"]))


def main(args: argparse.Namespace, root: Path) -> None:
    scale = SCALES[args.scale]
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    games = Games(make_shards(root, scale))
    loader = DataLoader(games, scale.batch, shuffle=True, num_workers=2, persistent_workers=True, drop_last=True)
    part = scale.device_s / 4
    device = sim.Device(forward=part, backward=2 * part, optimizer=part)
    model: nn.Module = nn.Sequential(nn.Linear(95, 8), nn.ReLU(), nn.Linear(8, 1), nn.Flatten(0))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    model = device.place(model, optimizer)
    criterion = nn.BCEWithLogitsLoss()

    done, began = 0, time.perf_counter()
    for epoch in range(args.epochs or scale.epochs):
        for position, target in loader:
            if done >= args.steps:
                break
            logits = model(position.to(device, torch.float32, non_blocking=True))
            loss = criterion(logits, target.to(device, non_blocking=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done += 1
            if done % 16 == 0:
                print(f"{epoch}.{done} {loss.item():.4f}")
    device.synchronize()
    print(f"{done} steps in {time.perf_counter() - began:.2f} s")


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
