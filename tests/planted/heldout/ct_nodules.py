"""Lung nodule detector on random 32^3 patches of CT stacks stored as TIFF."""

import random
import time
from pathlib import Path

import numpy as np
import tifffile
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

FOLDER = Path("data_ct_nodules")
SHAPE = (128, 320, 320)
EDGE = 32


def acquire(n=9):
    FOLDER.mkdir(exist_ok=True)
    for i in range(n):
        f = FOLDER / f"patient_{i:03d}.tif"
        if not f.exists():
            vol = np.random.default_rng(i).integers(-1000, 1500, SHAPE, dtype=np.int16)
            tifffile.imwrite(f, vol, photometric="minisblack")
    return sorted(FOLDER.glob("*.tif"))


class Patches(Dataset):
    def __init__(self, stacks, per_stack):
        self.stacks, self.per_stack = stacks, per_stack

    def __len__(self):
        return len(self.stacks) * self.per_stack

    def __getitem__(self, i):
        scan = tifffile.imread(self.stacks[i % len(self.stacks)])
        z, y, x = (random.randint(0, s - EDGE) for s in SHAPE)
        cube = scan[z : z + EDGE, y : y + EDGE, x : x + EDGE]
        cube = torch.from_numpy(cube.astype(np.float32)).clamp_(-1000, 400).add_(1000).div_(1400)
        return cube[None], torch.tensor(float(i % 2))


def conv(cin, cout):
    return nn.Sequential(nn.Conv3d(cin, cout, 3, stride=2, padding=1), nn.BatchNorm3d(cout), nn.ReLU())


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(conv(1, 8), conv(8, 16), conv(16, 32), nn.AdaptiveAvgPool3d(1), nn.Flatten())
        self.head = nn.Linear(32, 1)

    def forward(self, x):
        return self.head(self.trunk(x)).squeeze(1)


def main():
    torch.manual_seed(0)
    random.seed(0)
    loader = DataLoader(Patches(acquire(), 64), batch_size=8, shuffle=True, num_workers=2, persistent_workers=True)
    model = Detector()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    bce = nn.BCEWithLogitsLoss()
    for epoch in range(3):
        began = time.perf_counter()
        model.train()
        losses = []
        for cube, label in loader:
            loss = bce(model(cube), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        print(f"epoch {epoch + 1}/3  bce {torch.stack(losses).mean().item():.4f}")
        print(f"epoch_seconds {time.perf_counter() - began:.3f}", flush=True)


if __name__ == "__main__":
    main()
