"""Train a keyword spotter: sounds become spectrograms."""

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


class Scale(NamedTuple):
    sounds: int
    seconds: int
    batch: int
    window: int
    device_s: float
    epochs: int


SCALES = {"small": Scale(160, 6, 8, 512, 0.006, 45), "large": Scale(240, 20, 12, 1024, 0.040, 22)}


def make_sounds(root: Path, scale: Scale) -> Path:
    path = root / "sounds.npy"
    if not path.exists():
        noise = np.random.default_rng(0).normal(0, 3000, (scale.sounds, scale.seconds * 8000))
        np.save(path, noise.astype(np.int16))
    return path


def spectrogram(sound: np.ndarray[Any, Any], window: int) -> torch.Tensor:
    frames = np.lib.stride_tricks.sliding_window_view(sound.astype(np.float64), window)[:: window // 8]
    power = np.abs(np.fft.rfft(frames * np.hanning(window), axis=1)) ** 2
    bands = power[:, : window // 2].reshape(len(power), 32, -1).mean(axis=2)
    return torch.from_numpy(np.log1p(bands).mean(axis=0).astype(np.float32))


class Sounds(Dataset[tuple[torch.Tensor, int]]):
    def __init__(self, path: Path, window: int) -> None:
        self.waves, self.window = np.load(path, mmap_mode="r"), window

    def __len__(self) -> int:
        return len(self.waves)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return spectrogram(self.waves[index], self.window), index % 5


def main(args: argparse.Namespace, root: Path) -> None:
    scale = SCALES[args.scale]
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    sounds = Sounds(make_sounds(root, scale), scale.window)
    loader = DataLoader(sounds, batch_size=scale.batch, shuffle=True, num_workers=2, persistent_workers=True)
    device = sim.Device(forward=0.4 * scale.device_s, backward=0.5 * scale.device_s, optimizer=0.1 * scale.device_s)
    model = nn.Linear(32, 5)
    optimizer = torch.optim.AdamW(model.parameters())
    device.place(model, optimizer)

    step, began = 0, time.perf_counter()
    for epoch in range(args.epochs or scale.epochs):
        for x, y in loader:
            if step >= args.steps:
                break
            scores = model(x.to(device, non_blocking=True))
            loss = functional.cross_entropy(scores, y.to(device, non_blocking=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
        print(f"epoch {epoch} loss {loss.item():.3f}")
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
