"""DCGAN on 32x32 colour shapes from a memory-mapped .npy; generator and discriminator have their own optimizers."""

import argparse
import os
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

Z = 64


def shapes(folder, n=1024):
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "shapes.npy")
    if not os.path.exists(path):
        rng = np.random.default_rng(10)
        yy, xx = np.mgrid[:32, :32]
        out = np.zeros((n, 3, 32, 32), np.uint8)
        for i in range(n):
            cy, cx, r = rng.integers(8, 24, 2).tolist() + [int(rng.integers(4, 9))]
            out[i, :, (yy - cy) ** 2 + (xx - cx) ** 2 < r * r] = rng.integers(60, 255, 3)
        np.save(path, out)
    return path


class Shapes(Dataset):
    def __init__(self, path):
        self.images = np.load(path, mmap_mode="r")

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return torch.from_numpy(self.images[i].astype(np.float32)) / 127.5 - 1


def generator(c=96):
    return nn.Sequential(
        nn.ConvTranspose2d(Z, c * 2, 4),
        nn.BatchNorm2d(c * 2),
        nn.ReLU(),
        nn.ConvTranspose2d(c * 2, c, 4, 2, 1),
        nn.BatchNorm2d(c),
        nn.ReLU(),
        nn.ConvTranspose2d(c, c // 2, 4, 2, 1),
        nn.BatchNorm2d(c // 2),
        nn.ReLU(),
        nn.ConvTranspose2d(c // 2, 3, 4, 2, 1),
        nn.Tanh(),
    )


def discriminator(c=48):
    return nn.Sequential(
        nn.Conv2d(3, c, 4, 2, 1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(c, c * 2, 4, 2, 1),
        nn.BatchNorm2d(c * 2),
        nn.LeakyReLU(0.2),
        nn.Conv2d(c * 2, c * 4, 4, 2, 1),
        nn.BatchNorm2d(c * 4),
        nn.LeakyReLU(0.2),
        nn.Conv2d(c * 4, 1, 4),
        nn.Flatten(0),
    )


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("data")
    ap.add_argument("--epochs", type=int, default=300)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    loader = DataLoader(
        Shapes(shapes(args.data)), batch_size=32, shuffle=True, drop_last=True, num_workers=1, persistent_workers=True
    )
    G, D = generator(), discriminator()
    og = torch.optim.Adam(G.parameters(), 2e-4, betas=(0.5, 0.999))
    od = torch.optim.Adam(D.parameters(), 2e-4, betas=(0.5, 0.999))
    bce = nn.BCEWithLogitsLoss()
    for epoch in range(args.epochs):
        t, n = time.time(), 0
        for real in loader:
            b = len(real)
            fake = G(torch.randn(b, Z, 1, 1))
            od.zero_grad()
            loss_d = bce(D(real), torch.ones(b)) + bce(D(fake.detach()), torch.zeros(b))
            loss_d.backward()
            od.step()
            og.zero_grad()
            loss_g = bce(D(fake), torch.ones(b))
            loss_g.backward()
            og.step()
            n += b
        print(
            f"epoch {epoch} D {loss_d.item():.3f} G {loss_g.item():.3f} {n / (time.time() - t):.1f} samples/s",
            flush=True,
        )
        if epoch % 10 == 0:
            torch.save(G.state_dict(), os.path.join(args.data, "generator.pt"))


if __name__ == "__main__":
    main()
