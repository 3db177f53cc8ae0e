"""Electric load forecasting: 48 steps in, 12 steps out, four feeders, from one long .npy recording."""

import argparse
import os
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

HIST, HORIZON, FEEDERS = 48, 12, 4


def make_data(root):
    path = os.path.join(root, "load.npy")
    if os.path.exists(path):
        return path
    os.makedirs(root, exist_ok=True)
    rng = np.random.default_rng(3)
    t = np.arange(60_000)[:, None]
    phase = rng.uniform(0, 6.28, (1, FEEDERS))
    x = 50 + 10 * np.sin(t / 96 * 6.2832 + phase) + 4 * np.sin(t / 672 * 6.2832 + 2 * phase)
    x += np.cumsum(rng.normal(0, 0.05, x.shape), 0) + rng.normal(0, 1, x.shape)
    np.save(path + ".tmp.npy", x.astype(np.float32))
    os.replace(path + ".tmp.npy", path)
    return path


class LoadWindows(Dataset):
    def __init__(self, path, first, last):
        self.values = np.load(path, mmap_mode="r")
        self.first = first
        self.count = last - first - HIST - HORIZON

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        s = self.first + i
        past = torch.tensor(self.values[s : s + HIST])
        future = torch.tensor(self.values[s + HIST : s + HIST + HORIZON])
        return past, future


class LoadWindowsBlock(LoadWindows):
    def __getitems__(self, ids):
        rows = self.first + np.asarray(ids)[:, None] + np.arange(HIST + HORIZON)[None]
        block = torch.from_numpy(self.values[rows])
        return block[:, :HIST], block[:, HIST:]


class Forecaster(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(HIST, hidden), nn.GELU(), nn.Linear(hidden, HORIZON))

    def forward(self, x):
        mean = x.mean(1, keepdim=True)
        std = x.std(1, keepdim=True) + 1e-4
        y = self.net(((x - mean) / std).transpose(1, 2)).transpose(1, 2)
        return y * std + mean


def main():
    p = argparse.ArgumentParser()
    p.add_argument("data")
    p.add_argument("--epochs", type=int, default=400)
    p.add_argument("--batch-size", type=int, default=256)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--fixed", action="store_true")
    args = p.parse_args()

    torch.manual_seed(0)
    path = make_data(args.data)
    if args.fixed:
        train = LoadWindowsBlock(path, 0, 50_000)
        loader = DataLoader(train, args.batch_size, shuffle=True, drop_last=True, collate_fn=lambda b: b)
    else:
        train = LoadWindows(path, 0, 50_000)
        loader = DataLoader(train, args.batch_size, shuffle=True, drop_last=True)

    model = Forecaster()
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        t0, seen, total = time.time(), 0, 0.0
        for step, (past, future) in enumerate(loader):
            loss = nn.functional.smooth_l1_loss(model(past), future)
            opt.zero_grad()
            loss.backward()
            opt.step()
            seen += len(past)
            if step % 50 == 0:
                total = loss.item()
        print(f"epoch {epoch} loss {total:.4f} {seen / (time.time() - t0):.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
