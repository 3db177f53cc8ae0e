"""Train on sensor matrices that are mixed and decorrelated in the workers."""

# A script as people write it: no torch.device, to the type checker, is what stands for one here.
# mypy: disable-error-code="call-overload, no-any-return, arg-type"
import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stoker import sim


class Scale(NamedTuple):
    matrices: int
    side: int
    batch: int
    threads: int
    device_s: float
    epochs: int


SCALES = {"small": Scale(640, 96, 8, 1, 0.025, 12), "large": Scale(480, 128, 16, 1, 0.060, 8)}


class Mixed(Dataset[torch.Tensor]):
    def __init__(self, scale: Scale) -> None:
        self.count, self.side = scale.matrices, scale.side

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        x = torch.randn(self.side, self.side)
        for _ in range(16):
            x = torch.tanh(x @ x.T / self.side)
        return x.mean(dim=0)[:64]


class Start:
    def __init__(self, threads: int) -> None:
        self.threads = threads

    def __call__(self, worker: int) -> None:
        torch.set_num_threads(self.threads)
        torch.manual_seed(worker)


def main(args: argparse.Namespace, root: Path) -> None:
    scale = SCALES[args.scale]
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    device = sim.Device(forward=0.4 * scale.device_s, backward=0.5 * scale.device_s, optimizer=0.1 * scale.device_s)
    loader = DataLoader(
        Mixed(scale),
        batch_size=scale.batch,
        num_workers=2,
        worker_init_fn=Start(scale.threads),
        persistent_workers=True,
    )
    model = nn.Linear(64, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    device.place(model, optimizer)

    step, began = 0, time.perf_counter()
    for epoch in range(args.epochs or scale.epochs):
        for x in loader:
            if step >= args.steps:
                break
            loss = model(x.to(device, non_blocking=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 20 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.3f}")
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
