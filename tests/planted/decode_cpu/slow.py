"""Train a classifier on a folder of JPEG photographs, seen once."""

# A script as people write it: no torch.device, to the type checker, is what stands for one here.
# mypy: disable-error-code="call-overload, no-any-return, arg-type"
import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import simplejpeg
import torch
from PIL import Image
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from stoker import sim

SIDE = 64


class Scale(NamedTuple):
    photos: int
    pixels: int
    batch: int
    device_s: float


SCALES = {"small": Scale(7200, 400, 12, 0.011), "large": Scale(5600, 640, 28, 0.045)}


def make_photos(root: Path, count: int, pixels: int) -> list[Path]:
    """Forty scenes, each photo with its own comment in the file, so that no two files are the same."""
    rng = np.random.default_rng(0)
    waves = np.linspace(0, 3 * np.pi, pixels)
    scenes = []
    for _ in range(40):
        a, b, c = rng.uniform(0.5, 4, 3)
        picture = np.stack([np.sin(np.add.outer(a * waves, b * waves) + c * k) for k in range(3)], axis=-1)
        grain = rng.normal(0, 6, picture.shape)
        scenes.append(simplejpeg.encode_jpeg(np.clip(127 + 90 * picture + grain, 0, 255).astype(np.uint8), quality=85))
    paths = [root / f"{i:06d}.jpg" for i in range(count)]
    for i, path in enumerate(paths):
        if not path.exists():
            scene, note = scenes[i % len(scenes)], f"photo {i:06d}".encode()
            path.write_bytes(scene[:2] + b"\xff\xfe" + (len(note) + 2).to_bytes(2, "big") + note + scene[2:])
    return paths


class Photos(Dataset[tuple[torch.Tensor, int]]):
    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with Image.open(self.paths[index]) as photo:
            small = photo.convert("RGB").resize((SIDE, SIDE))
        return torch.from_numpy(np.array(small)).permute(2, 0, 1), index % 10


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3 * 8 * 8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(functional.avg_pool2d(x.float() / 255, 8).flatten(1))


def main(args: argparse.Namespace, root: Path) -> None:
    scale = SCALES[args.scale]
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    paths = make_photos(root, scale.photos, scale.pixels)
    loader = DataLoader(Photos(paths), batch_size=scale.batch, shuffle=True, num_workers=2, drop_last=True)
    device = sim.Device(forward=0.4 * scale.device_s, backward=0.5 * scale.device_s, optimizer=0.1 * scale.device_s)
    net = Net()
    optimizer = torch.optim.Adam(net.parameters())
    net = device.place(net, optimizer)

    step, began = 0, time.perf_counter()
    for _ in range(args.epochs or 1):
        for x, y in loader:
            if step >= args.steps:
                break
            images, labels = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            optimizer.zero_grad(set_to_none=True)
            loss = functional.cross_entropy(net(images), labels)
            loss.backward()
            optimizer.step()
            step += 1
            if step % 25 == 0:
                print(f"step {step} loss {loss.item():.3f}")
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
