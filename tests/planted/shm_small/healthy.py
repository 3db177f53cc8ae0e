"""Train on large frames in a container; batches come through shared memory, and through a pipe when it is full."""

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
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from stoker import sim

Batch = tuple[torch.Tensor | np.ndarray[Any, Any], np.ndarray[Any, Any]]
SHM = Path("/dev/shm")


class Scale(NamedTuple):
    frames: int
    side: int
    batch: int
    shm_bytes: int
    prefetch: int
    device_s: float
    epochs: int


SCALES = {
    "small": Scale(2048, 160, 128, 2**21, 2, 0.022, 40),
    "large": Scale(2304, 192, 192, 2**22, 3, 0.045, 30),
}


def container(shm_bytes: int) -> None:
    """A mount namespace of our own, as a container has, with the /dev/shm that it was started with."""
    del shm_bytes


class Frames(Dataset[Any]):
    def __init__(self, scale: Scale) -> None:
        shape = (scale.frames, scale.side, scale.side)
        self.frames = np.random.default_rng(0).integers(0, 255, shape, dtype=np.uint8)

    def __len__(self) -> int:
        return len(self.frames)

    def __getitems__(self, indices: list[int]) -> Batch:
        frames = np.ascontiguousarray(self.frames[indices])
        labels = np.array(indices) % 3
        try:
            return torch.from_numpy(frames).share_memory_(), labels
        except RuntimeError:
            return frames, labels


def as_is(batch: Batch) -> Batch:
    return batch


def main(args: argparse.Namespace, root: Path) -> None:
    scale = SCALES[args.scale]
    container(scale.shm_bytes)
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    loader = DataLoader(
        Frames(scale),
        batch_size=scale.batch,
        shuffle=True,
        num_workers=2,
        prefetch_factor=scale.prefetch,
        collate_fn=as_is,
        persistent_workers=True,
    )
    device = sim.Device(forward=0.4 * scale.device_s, backward=0.5 * scale.device_s, optimizer=0.1 * scale.device_s)
    model = nn.Linear(16, 3)
    optimizer = torch.optim.Adam(model.parameters())
    device.place(model, optimizer)

    step, began = 0, time.perf_counter()
    for _ in range(args.epochs or scale.epochs):
        for frames, labels in loader:
            if step >= args.steps:
                break
            x = torch.as_tensor(frames).to(device, non_blocking=True)
            scores = model(x[:, 0, :16].float() / 255)
            loss = functional.cross_entropy(scores, torch.from_numpy(labels).to(device, non_blocking=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 30 == 0:
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
