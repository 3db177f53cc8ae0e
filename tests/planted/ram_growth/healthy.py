"""Train on user histories that are held by the data set and read by forked workers."""

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
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from stoker import sim


class Scale(NamedTuple):
    users: int
    history: int
    batch: int
    workers: int
    device_s: float
    epochs: int


SCALES = {"small": Scale(2_000_000, 6, 64, 2, 0.020, 1), "large": Scale(400_000, 24, 128, 2, 0.010, 1)}


class Histories(Dataset[torch.Tensor]):
    def __init__(self, scale: Scale) -> None:
        rng = np.random.default_rng(11)
        items = rng.integers(1000, 2**30, (scale.users, scale.history))
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([item % 997 / 997 for item in self.items[index].tolist()])


def main(args: argparse.Namespace, root: Path) -> None:
    scale = SCALES[args.scale]
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    loader = DataLoader(Histories(scale), batch_size=scale.batch, shuffle=True, num_workers=scale.workers)
    device = sim.Device(forward=0.3 * scale.device_s, backward=0.5 * scale.device_s, optimizer=0.2 * scale.device_s)
    encoder = nn.Linear(scale.history, 4)
    decoder = nn.Linear(4, scale.history)
    optimizer = torch.optim.NAdam([*encoder.parameters(), *decoder.parameters()])
    device.place(encoder, optimizer)
    device.place(decoder, forward=0.0, backward=0.0)

    step, began = 0, time.perf_counter()
    for _ in range(args.epochs or scale.epochs):
        for history in loader:
            if step >= args.steps:
                break
            x = history.to(device, non_blocking=True)
            loss = functional.mse_loss(decoder(encoder(x).tanh()), x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 40 == 0:
                print(f"step {step}: {loss.item():.4f}")
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
