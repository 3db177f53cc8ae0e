"""Hardness of amorphous grains from their radial fingerprints."""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

ATOMS, BINS = 120, 64


def grains(folder: Path, count: int):
    path = folder / f"grains_{count}.npz"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(23)
        density = rng.uniform(0.6, 1.6, count)
        xyz = rng.uniform(-1, 1, (count, ATOMS, 3)) * 4.0 / density[:, None, None] ** (1 / 3)
        np.savez(path, xyz=xyz, hardness=(density**2 + rng.normal(0, 0.05, count)).astype(np.float32))
    with np.load(path) as z:
        return z["xyz"], z["hardness"]


class Fingerprints(Dataset):
    def __init__(self, xyz, hardness):
        self.xyz, self.hardness = xyz, torch.from_numpy(hardness)
        self.i, self.j = np.triu_indices(ATOMS, k=1)
        self.centres = np.linspace(0.2, 9.0, BINS)

    def __len__(self):
        return len(self.xyz)

    def fingerprint(self, xyz):
        gap = xyz[self.i] - xyz[self.j]
        r = np.sqrt((gap * gap).sum(axis=1))
        smear = np.exp(-(((r[:, None] - self.centres) / 0.2) ** 2))
        return (smear.sum(axis=0) / self.centres**2 / ATOMS).astype(np.float32)

    def __getitem__(self, k):
        return self.fingerprint(self.xyz[k]), self.hardness[k]


class Hardness(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(BINS, 128), nn.SiLU(), nn.Linear(128, 128), nn.SiLU(), nn.Linear(128, 1))

    def forward(self, x):
        return self.layers(torch.log1p(x)).squeeze(1)


def batches_of(loader, epochs):
    for epoch in range(epochs):
        for step, batch in enumerate(loader):
            yield epoch, step, batch


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--folder", type=Path, default=Path("grain_data"))
    ap.add_argument("--count", type=int, default=1600)
    ap.add_argument("--epochs", type=int, default=15)
    args = ap.parse_args()
    torch.manual_seed(29)
    torch.set_num_threads(1)

    data = Fingerprints(*grains(args.folder, args.count))
    loader = DataLoader(data, batch_size=16, shuffle=True, num_workers=2, persistent_workers=True)
    net = Hardness()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    start = time.perf_counter()
    for epoch, step, (prints, hardness) in batches_of(loader, args.epochs):
        loss = nn.functional.mse_loss(net(prints), hardness)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 50 == 0:
            print(f"{epoch:2d}/{step:03d} mse {loss.item():.4f} at {time.perf_counter() - start:.1f} s", flush=True)


if __name__ == "__main__":
    main()
