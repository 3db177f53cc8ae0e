"""Denoise electron-microscope scans: a small residual CNN on random patches of large int16 scans."""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

PATCH = 32


def make_scans(root, count=4, side=3800):
    root = Path(root)
    root.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(4)
    grid = np.linspace(0, 30, side)
    for i in range(count):
        out = root / f"scan_{i:02d}.npy"
        if out.exists():
            continue
        s = 3000 * np.sin(grid[:, None] * rng.uniform(1, 3)) * np.cos(grid[None] * rng.uniform(1, 3))
        s = s + 500 * rng.standard_normal((side, side), dtype=np.float32)
        np.save(out, s.astype(np.int16))
    return sorted(root.glob("scan_*.npy"))


class Patches(Dataset):
    def __init__(self, scans, per_scan=128, mode=None):
        self.scans, self.per_scan, self.mode = scans, per_scan, mode

    def __len__(self):
        return len(self.scans) * self.per_scan

    def __getitem__(self, k):
        scan = np.load(self.scans[k % len(self.scans)], mmap_mode=self.mode)
        r, c = (int(torch.randint(0, n - PATCH, (1,))) for n in scan.shape)
        patch = np.array(scan[r : r + PATCH, c : c + PATCH], dtype=np.float32) / 4000
        clean = torch.from_numpy(patch)[None]
        return clean + 0.1 * torch.randn_like(clean), clean


class Denoiser(nn.Module):
    def __init__(self, c=10, depth=1):
        super().__init__()
        mid = [m for _ in range(depth) for m in (nn.Conv2d(c, c, 3, padding=1), nn.ReLU())]
        self.body = nn.Sequential(nn.Conv2d(1, c, 3, padding=1), nn.ReLU(), *mid, nn.Conv2d(c, 1, 3, padding=1))

    def forward(self, x):
        return x - self.body(x)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("data")
    ap.add_argument("--epochs", type=int, default=300)
    ap.add_argument("-b", "--batch", type=int, default=16)
    ap.add_argument("-j", "--workers", type=int, default=2)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()

    scans = make_scans(args.data)
    loader = DataLoader(
        Patches(scans, mode="r" if args.fixed else None),
        args.batch,
        shuffle=True,
        num_workers=args.workers,
        persistent_workers=args.workers > 0,
    )
    model = Denoiser()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        t, n, acc = time.time(), 0, torch.zeros(())
        for noisy, clean in loader:
            loss = nn.functional.mse_loss(model(noisy), clean)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            acc += loss.detach()
            n += noisy.shape[0]
        print(f"epoch {epoch}: mse {acc.item() / len(loader):.5f} | {n / (time.time() - t):.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
