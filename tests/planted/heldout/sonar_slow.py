"""Harbour hydrophones: which of five vessel classes made this ping?

The network runs on the little USB board; here its firmware latency is reproduced so that the
recipe can be rehearsed on a laptop without the board plugged in.
"""

import argparse
import random
import time
from collections import namedtuple
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

RATE = 16_000
LENGTH = 24_000
VESSELS = 5

Ping = namedtuple("Ping", "spec label")


def record(folder: Path, count: int) -> tuple[np.ndarray, np.ndarray]:
    waves, kinds = folder / f"waves_{count}.npy", folder / f"kinds_{count}.npy"
    if not (waves.exists() and kinds.exists()):
        folder.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(3)
        t = np.arange(LENGTH) / RATE
        labels = rng.integers(0, VESSELS, count)
        out = np.empty((count, LENGTH), np.int16)
        for i, kind in enumerate(labels):
            f0 = 300.0 + 350.0 * kind + rng.normal(0, 40)
            sweep = rng.uniform(-120, 120)
            tone = np.sin(2 * np.pi * (f0 * t + 0.5 * sweep * t * t)) * np.exp(-t * rng.uniform(1, 3))
            out[i] = 9000 * tone + 500 * rng.standard_normal(LENGTH)
        np.save(waves, out)
        np.save(kinds, labels)
    return np.load(waves), np.load(kinds)


class Pings(Dataset):
    """Each look at a recording hears it through another, freshly drawn, channel."""

    def __init__(self, waves: np.ndarray, kinds: np.ndarray):
        self.waves = waves
        self.kinds = kinds
        self.window = np.hanning(512)
        self.grid = np.arange(LENGTH, dtype=np.float64)
        self.bands = np.arange(0, 256, 4)

    def __len__(self) -> int:
        return len(self.waves)

    def channel(self, x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        x = np.interp(self.grid * rng.uniform(0.92, 1.08), self.grid, x)  # doppler
        echo = rng.standard_normal(2048) * np.exp(-np.arange(2048) / rng.uniform(150, 600))
        echo[0] = 12.0
        size = 32_768
        x = np.fft.irfft(np.fft.rfft(x, size) * np.fft.rfft(echo, size), size)[:LENGTH]
        x /= np.abs(x).max() + 1e-9
        return x + rng.uniform(0.01, 0.15) * rng.standard_normal(LENGTH)

    def __getitem__(self, i: int) -> Ping:
        rng = np.random.default_rng(random.getrandbits(48))
        x = self.channel(self.waves[i].astype(np.float64) / 32768.0, rng)
        frames = np.lib.stride_tricks.sliding_window_view(x, 512)[::128] * self.window
        power = np.abs(np.fft.rfft(frames, axis=1))[:, :256] ** 2
        spec = np.log(np.add.reduceat(power, self.bands, axis=1) + 1e-6)
        return Ping(torch.from_numpy(np.ascontiguousarray(spec.T, dtype=np.float32)), int(self.kinds[i]))


class OnBoard(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, seconds):
        ctx.seconds = seconds
        time.sleep(seconds)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        time.sleep(2 * ctx.seconds)
        return grad, None


class Listener(nn.Module):
    def __init__(self, latency: float):
        super().__init__()
        self.latency = latency
        self.front = nn.Conv1d(64, 24, 5, stride=4)
        self.head = nn.Linear(24, VESSELS)

    def forward(self, spec):
        h = torch.relu(self.front(spec * 0.1))
        h = OnBoard.apply(h, self.latency)
        return self.head(h.mean(dim=2))


class Trainer:
    def __init__(self, args):
        torch.manual_seed(args.seed)
        random.seed(args.seed)
        torch.set_num_threads(1)
        self.args = args
        self.model = Listener(args.latency)
        self.optimiser = torch.optim.Adam(self.model.parameters(), lr=2e-3)
        self.lossfn = nn.CrossEntropyLoss()

    def loader(self) -> DataLoader:
        waves, kinds = record(Path(self.args.folder), self.args.count)
        return DataLoader(Pings(waves, kinds), batch_size=16, shuffle=True, drop_last=True)

    def fit(self) -> None:
        loader = self.loader()
        for epoch in range(self.args.epochs):
            began, losses = time.time(), []
            for batch in loader:
                self.optimiser.zero_grad()
                loss = self.lossfn(self.model(batch.spec), batch.label)
                loss.backward()
                self.optimiser.step()
                losses.append(loss.detach())
            print(f"epoch {epoch} loss {torch.stack(losses).mean():.4f} ({time.time() - began:.1f} s)", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", default="sonar_data")
    parser.add_argument("--count", type=int, default=1280)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--latency", type=float, default=0.015, help="board seconds per forward pass")
    parser.add_argument("--seed", type=int, default=11)
    Trainer(parser.parse_args()).fit()
