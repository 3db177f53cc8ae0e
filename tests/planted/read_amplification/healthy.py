"""Segment scanned volumes from random patches; each scan is one file."""

# A script as people write it: no torch.device, to the type checker, is what stands for one here.
# mypy: disable-error-code="call-overload, no-any-return, arg-type"
import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tifffile
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stoker import sim


class Scale(NamedTuple):
    scans: int
    depth: int
    side: int
    patch: int
    batch: int
    device_s: float
    epochs: int


SCALES = {"small": Scale(24, 192, 224, 32, 4, 0.004, 200), "large": Scale(24, 64, 512, 64, 6, 0.008, 400)}


def make_scans(root: Path, scale: Scale) -> list[Path]:
    paths = [root / f"scan{i:03d}.tif" for i in range(scale.scans)]
    for i, path in enumerate(paths):
        if not path.exists():
            rng = np.random.default_rng(i)
            tifffile.imwrite(path, rng.integers(0, 255, (scale.depth, scale.side, scale.side), dtype=np.uint8))
    return paths


class Patches(Dataset[torch.Tensor]):
    def __init__(self, paths: list[Path], patch: int) -> None:
        self.paths, self.patch = paths, patch

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        scan = tifffile.memmap(self.paths[index], mode="r")
        corner = [int(torch.randint(0, side - self.patch + 1, ())) for side in scan.shape]
        cut = tuple(slice(low, low + self.patch) for low in corner)
        return torch.from_numpy(np.array(scan[cut]))


class Segmenter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mix(x[:, ::16, ::16, :8].float() / 255).mean(dim=(1, 2, 3))


def main(args: argparse.Namespace, root: Path) -> None:
    scale = SCALES[args.scale]
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    loader = DataLoader(
        Patches(make_scans(root, scale), scale.patch),
        batch_size=scale.batch,
        shuffle=True,
        num_workers=2,
        persistent_workers=True,
        prefetch_factor=4,
    )
    device = sim.Device(forward=0.4 * scale.device_s, backward=0.5 * scale.device_s, optimizer=0.1 * scale.device_s)
    model = Segmenter()
    optimizer = torch.optim.AdamW(model.parameters())
    device.place(model, optimizer)

    step, began = 0, time.perf_counter()
    for epoch in range(args.epochs or scale.epochs):
        for patches in loader:
            if step >= args.steps:
                break
            loss = (model(patches.to(device, non_blocking=True)) - 0.5).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
        if epoch % 5 == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}")
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
