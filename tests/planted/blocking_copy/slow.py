"""Train a detector: frames go to the accelerator, box targets are laid out on the host."""

# A script as people write it: no torch.device, to the type checker, is what stands for one here.
# mypy: disable-error-code="call-overload, no-any-return, arg-type"
import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stoker import sim


class Scale(NamedTuple):
    frames: int
    pixels: int
    batch: int
    anchors: int
    device_s: float
    epochs: int


SCALES = {"small": Scale(320, 96, 16, 20_000, 0.010, 40), "large": Scale(384, 192, 24, 60_000, 0.028, 35)}


class Frames(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    def __init__(self, scale: Scale) -> None:
        rng = np.random.default_rng(0)
        self.frames = torch.from_numpy(rng.random((scale.frames, 3, scale.pixels, scale.pixels), dtype=np.float32))
        self.boxes = torch.from_numpy(rng.random((scale.frames, 4), dtype=np.float32))

    def __len__(self) -> int:
        return len(self.frames)

    def __getitems__(self, indices: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        return self.frames[indices], self.boxes[indices]


def as_is(batch: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    return batch


def nearest(boxes: torch.Tensor, anchors: torch.Tensor) -> torch.Tensor:
    return torch.stack([(anchors - box).abs().sum(dim=1).argmin() for box in boxes])


def main(args: argparse.Namespace, root: Path) -> None:
    scale = SCALES[args.scale]
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    loader = DataLoader(
        Frames(scale), batch_size=scale.batch, shuffle=True, num_workers=1, collate_fn=as_is, persistent_workers=True
    )
    anchors = torch.rand(scale.anchors, 4)
    device = sim.Device(
        forward=0.4 * scale.device_s,
        backward=0.5 * scale.device_s,
        optimizer=0.1 * scale.device_s,
        copy_bytes_per_s=1e9,
    )
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    device.place(model, optimizer)

    step, began = 0, time.perf_counter()
    for epoch in range(args.epochs or scale.epochs):
        for frames, boxes in loader:
            if step >= args.steps:
                break
            images = frames.to(device)
            targets = nearest(boxes, anchors).to(device)
            loss = (model(images[:, 0, 0, :8]) - targets[:, None] / scale.anchors).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 20 == 0:
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
