"""Train on waveforms that are resampled and filtered afresh each time, in a container with its own share of the CPU."""

# A script as people write it: no torch.device, to the type checker, is what stands for one here.
# mypy: disable-error-code="call-overload, no-any-return, arg-type"
import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stoker import sim


class Scale(NamedTuple):
    waves: int
    samples: int
    batch: int
    quota: float
    device_s: float
    epochs: int


SCALES = {"small": Scale(960, 3000, 36, 0.6, 0.014, 20), "large": Scale(1600, 9000, 60, 0.8, 0.055, 10)}


@contextlib.contextmanager
def container(cores: float) -> Iterator[None]:
    """Live in a control group with this many cores, where the machine lets us; leave it again at the end."""
    del cores
    yield


class Waves(Dataset[torch.Tensor]):
    def __init__(self, scale: Scale) -> None:
        self.tones = np.random.default_rng(0).uniform(1, 60, scale.waves)
        self.samples = scale.samples

    def __len__(self) -> int:
        return len(self.tones)

    def __getitem__(self, index: int) -> torch.Tensor:
        rng = np.random.default_rng(int(torch.randint(0, 2**31, ())))
        at = np.sort(rng.uniform(0, 1, self.samples))
        wave = np.sin(self.tones[index] * at) + rng.normal(0, 0.1, self.samples)
        even = np.interp(np.linspace(0, 1, self.samples), at, wave)
        return torch.from_numpy(np.abs(np.fft.rfft(even))[:64].astype(np.float32))


def main(args: argparse.Namespace, root: Path) -> None:
    scale = SCALES[args.scale]
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    with container(scale.quota):
        step, seconds = train(args, scale)
    print(f"{step} steps in {seconds:.2f} s")


def train(args: argparse.Namespace, scale: Scale) -> tuple[int, float]:
    loader = DataLoader(Waves(scale), batch_size=scale.batch, shuffle=True, num_workers=2, persistent_workers=True)
    device = sim.Device(forward=0.4 * scale.device_s, backward=0.5 * scale.device_s, optimizer=0.1 * scale.device_s)
    model = nn.Linear(64, 1)
    optimizer = torch.optim.Adam(model.parameters())
    device.place(model, optimizer)
    step, began = 0, time.perf_counter()
    for epoch in range(args.epochs or scale.epochs):
        for wave in loader:
            if step >= args.steps:
                break
            loss = model(wave.to(device, non_blocking=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 25 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.3f}")
    device.synchronize()
    return step, time.perf_counter() - began


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
