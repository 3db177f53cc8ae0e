"""Train on detector hits: hits of one event are pooled by the sensor that saw them."""

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
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from stoker import sim


class Scale(NamedTuple):
    events: int
    hits: int
    sensors: int
    batch: int
    device_s: float
    epochs: int


SCALES = {"small": Scale(3200, 40, 12, 16, 0.005, 4), "large": Scale(2400, 60, 30, 24, 0.020, 6)}


class Pooling(nn.Module):
    def __init__(self, sensors: int) -> None:
        super().__init__()
        self.sensors = sensors
        self.lift = nn.Linear(4, 8)
        self.head = nn.Linear(8 * sensors, 1)

    def forward(self, hits: torch.Tensor, sensor: torch.Tensor) -> torch.Tensor:
        lifted = self.lift(hits).relu()
        rows = [
            torch.cat([lifted[event, s :: self.sensors].sum(dim=0) for s in range(self.sensors)])
            for event in range(len(hits))
        ]
        return self.head(torch.stack(rows)).squeeze(1)


def main(args: argparse.Namespace, root: Path) -> None:
    scale = SCALES[args.scale]
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    file = root / "hits.pt"
    if not file.exists():
        torch.save(torch.randn(scale.events, scale.hits, 4), file)
    hits = torch.load(file)
    order = torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(hits), scale.batch, drop_last=True)
    loader = DataLoader(TensorDataset(hits, hits.mean(dim=(1, 2))), sampler=order, batch_size=None)
    device = sim.Device(forward=0.3 * scale.device_s, backward=0.5 * scale.device_s, optimizer=0.2 * scale.device_s)
    sensor = (torch.arange(scale.hits) % scale.sensors).to(device)
    model = Pooling(scale.sensors)
    optimizer = torch.optim.Adam(model.parameters())
    device.place(model, optimizer)

    step, began = 0, time.perf_counter()
    for epoch in range(args.epochs or scale.epochs):
        for x, y in loader:
            if step >= args.steps:
                break
            guess = model(x.to(device, non_blocking=True), sensor)
            loss = functional.smooth_l1_loss(guess, y.to(device, non_blocking=True))
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
