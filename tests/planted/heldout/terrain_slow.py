"""Learns slope and roughness from 64 x 64 tiles cut out of a synthetic relief."""

import argparse
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

SIDE = 2048
TILE = 64


def relief(seed=9, octaves=5):
    """Fractal landscape, the sum of band-limited noises."""
    rng = np.random.default_rng(seed)
    fy = np.fft.fftfreq(SIDE)[:, None]
    fx = np.fft.rfftfreq(SIDE)[None, :]
    radius = np.hypot(fy, fx)
    land = np.zeros((SIDE, SIDE))
    for octave in range(octaves):
        knee = 0.002 * 2**octave
        spectrum = np.fft.rfft2(rng.standard_normal((SIDE, SIDE)))
        spectrum *= np.exp(-((radius / knee) ** 2)) / 2**octave
        layer = np.fft.irfft2(spectrum, s=(SIDE, SIDE))
        land += layer / layer.std()
    return land.astype(np.float32)


class Tiles(IterableDataset):
    def __init__(self, per_epoch):
        self.per_epoch = per_epoch
        self.land = None
        self.rng = None

    def __iter__(self):
        info = get_worker_info()
        share = self.per_epoch // info.num_workers
        for _ in range(share):
            y, x = self.rng.integers(0, SIDE - TILE, 2)
            tile = self.land[y : y + TILE, x : x + TILE]
            tile = tile - tile.mean()
            slope = np.abs(tile[1:] - tile[:-1]).mean()
            yield tile[None], np.array([10 * slope, tile.std()], dtype=np.float32)


def prepare(worker_id):
    info = get_worker_info()
    info.dataset.land = relief()
    info.dataset.rng = np.random.default_rng(info.seed % 2**32)


class Surveyor(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 16, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
        )
        self.head = nn.Linear(64 * 4, 2)

    def forward(self, tiles):
        return self.head(self.body(tiles).flatten(1))


def epochs(loader, count):
    for number in range(count):
        yield number, iter(loader)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--tiles", type=int, default=960, help="tiles per epoch")
    parser.add_argument("--batch", type=int, default=32)
    args = parser.parse_args()

    torch.manual_seed(21)
    loader = DataLoader(Tiles(args.tiles), batch_size=args.batch, num_workers=2, worker_init_fn=prepare)
    model = Surveyor()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    for number, batches in epochs(loader, args.epochs):
        start, total, steps = time.time(), 0.0, 0
        for tiles, truth in batches:
            loss = (model(tiles) - truth).square().mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            total += loss.item()
            steps += 1
        print(f"epoch {number:2d}: {total / steps:.4f} in {time.time() - start:.2f} s", flush=True)


if __name__ == "__main__":
    main()
