"""Plankton classification, grey-scale crops, small residual CNN."""

import argparse
import os
import tempfile
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Crops(Dataset):
    def __init__(self, n, side=48, seed=0):
        rng = np.random.default_rng(seed)
        self.y = rng.integers(0, 6, n)
        yy, xx = np.mgrid[-1 : 1 : side * 1j, -1 : 1 : side * 1j]
        shapes = np.stack([np.sin((k + 2) * np.arctan2(yy, xx)) * np.exp(-3 * (xx**2 + yy**2)) for k in range(6)])
        self.x = (128 + 90 * shapes[self.y] + rng.normal(0, 15, (n, side, side))).clip(0, 255).astype(np.uint8)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        x = torch.from_numpy(self.x[i])
        if torch.rand(()) < 0.5:
            x = x.flip(1)
        return x, self.y[i]


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.a, self.b = nn.Conv2d(c, c, 3, padding=1, bias=False), nn.Conv2d(c, c, 3, padding=1, bias=False)
        self.na, self.nb = nn.BatchNorm2d(c), nn.BatchNorm2d(c)

    def forward(self, x):
        return F.relu(x + self.nb(self.b(F.relu(self.na(self.a(x))))))


class PlanktonNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 32, 5, stride=2, padding=2)
        self.body = nn.Sequential(Block(32), nn.Conv2d(32, 64, 3, stride=2, padding=1), Block(64), Block(64))
        self.fc = nn.Linear(64, 6)

    def forward(self, x):
        x = x.unsqueeze(1).float().div(255)
        return self.fc(self.body(self.stem(x)).mean((2, 3)))


@torch.inference_mode()
def accuracy(model, loader):
    model.eval()
    ok = sum((model(x).argmax(1) == y).sum().item() for x, y in loader)
    model.train()
    return ok / len(loader.dataset)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--batch-size", type=int, default=64)
    args = ap.parse_args()
    train = DataLoader(
        Crops(12_800), args.batch_size, shuffle=True, num_workers=2, persistent_workers=True, drop_last=True
    )
    val = DataLoader(Crops(256, seed=1), 128)
    model = PlanktonNet()
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 0.1, total_steps=args.epochs * len(train))
    with tempfile.TemporaryDirectory() as out:
        for epoch in range(args.epochs):
            t0 = time.time()
            for i, (x, y) in enumerate(train):
                loss = F.cross_entropy(model(x), y)
                opt.zero_grad()
                loss.backward()
                opt.step()
                sched.step()
                if i % 50 == 49:
                    print(
                        f"epoch {epoch} {i + 1}/{len(train)} loss {loss.item():.3f} {(time.time() - t0) / (i + 1) * 1e3:.0f} ms/step",
                        flush=True,
                    )
            print(f"epoch {epoch} val acc {accuracy(model, val):.3f}", flush=True)
            torch.save(model.state_dict(), os.path.join(out, "plankton.pt"))


if __name__ == "__main__":
    main()
