"""Train on pictures of many widths; the accelerator looks for its fastest algorithm, as cudnn.benchmark does."""

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
    batches: int
    narrowest: int
    widest: int
    batch: int
    device_s: float
    search_s: float
    epochs: int


SCALES = {"small": Scale(700, 380, 381, 8, 0.016, 0.060, 1), "large": Scale(400, 1200, 1201, 4, 0.040, 0.080, 1)}


class Pictures(Dataset[torch.Tensor]):
    def __init__(self, scale: Scale) -> None:
        self.widths = np.random.default_rng(0).integers(scale.narrowest, scale.widest, scale.batches)
        self.batch = scale.batch

    def __len__(self) -> int:
        return len(self.widths)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.rand(self.batch, 8, int(self.widths[index]))


class Accelerator:
    """What a convolution costs: by its width, and a search over algorithms for a shape not seen before."""

    def __init__(self, scale: Scale) -> None:
        self.second_s = scale.device_s / ((scale.narrowest + scale.widest) / 2)
        self.search_s = scale.search_s
        self.seen: set[torch.Size] = set()
        self.shape = torch.Size()

    def look(self, _: nn.Module, args: tuple[torch.Tensor]) -> None:
        self.shape = args[0].shape

    def cost(self, _: int) -> float:
        new = torch.backends.cudnn.benchmark and self.shape not in self.seen
        self.seen.add(self.shape)
        return self.second_s * self.shape[-1] / 2 + new * self.search_s


def main(args: argparse.Namespace, root: Path) -> None:
    scale = SCALES[args.scale]
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    loader = DataLoader(Pictures(scale), batch_size=None, shuffle=True, num_workers=1, persistent_workers=True)
    accelerator = Accelerator(scale)
    device = sim.Device(forward=accelerator.cost, backward=accelerator.cost)
    model = nn.Conv1d(8, 4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model.register_forward_pre_hook(accelerator.look)
    device.place(model, optimizer)

    step, began = 0, time.perf_counter()
    for epoch in range(args.epochs or scale.epochs):
        for pictures in loader:
            if step >= args.steps:
                break
            loss = model(pictures.to(device, non_blocking=True)).square().mean()
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
