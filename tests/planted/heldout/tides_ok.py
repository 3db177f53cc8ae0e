"""Water level 12 hours ahead from the last 128 readings of six gauges (dilated convolutions)."""

import argparse
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset

CONTEXT, AHEAD, GAUGES = 128, 12, 6


def gauges(hours, seed):
    rng = np.random.default_rng(seed)
    t = np.arange(hours)
    level = np.zeros((GAUGES, hours))
    for period, size in ((12.42, 1.0), (12.0, 0.45), (23.93, 0.3), (25.82, 0.2), (354.4, 0.1)):
        phase = rng.uniform(0, 2 * np.pi, (GAUGES, 1))
        level += size * np.sin(2 * np.pi * t / period + phase)
    surge = np.cumsum(rng.normal(0, 0.02, (GAUGES, hours)), axis=1)
    surge -= np.cumsum(np.full((GAUGES, hours), 1.0), axis=1) * surge[:, -1:] / hours
    return torch.from_numpy((level + surge).astype(np.float32))


class Windows(Dataset):
    def __init__(self, series, starts):
        self.series = series
        self.starts = list(starts)

    def __len__(self):
        return len(self.starts)

    def __getitem__(self, k):
        s = self.starts[k]
        return self.series[:, s : s + CONTEXT], self.series[:, s + CONTEXT + AHEAD]


class Block(nn.Module):
    def __init__(self, width, dilation):
        super().__init__()
        self.conv = nn.Conv1d(width, width, 3, padding=dilation, dilation=dilation)

    def forward(self, h):
        return h + F.relu(self.conv(h))


def network(width):
    return nn.Sequential(
        nn.Conv1d(GAUGES, width, 1),
        *[Block(width, 2**k) for k in range(4)],
        nn.AdaptiveAvgPool1d(4),
        nn.Flatten(),
        nn.Linear(4 * width, GAUGES),
    )


@torch.no_grad()
def validate(net, loader):
    net.eval()
    total, count = 0.0, 0
    for past, future in loader:
        total += F.l1_loss(net(past), future, reduction="sum").item()
        count += future.numel()
    net.train()
    return total / count


def train_epoch(net, loader, opt, every):
    for i, (past, future) in enumerate(loader, start=1):
        opt.zero_grad()
        loss = F.huber_loss(net(past), future)
        loss.backward()
        opt.step()
        if i % every == 0:
            print(f"   batch {i:4d}: huber {loss.item():.5f}", flush=True)


def main(args):
    torch.manual_seed(args.seed)
    series = gauges(20_000, args.seed)
    train = Windows(series, range(0, 15_360))
    heldout = Windows(series, range(15_600, 15_600 + 5 * 800, 5))
    train_loader = DataLoader(train, batch_size=64, shuffle=True, drop_last=True)
    heldout_loader = DataLoader(heldout, batch_size=200)
    net = network(args.width)
    opt = optim.AdamW(net.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        t = time.monotonic()
        train_epoch(net, train_loader, opt, args.every)
        error = validate(net, heldout_loader)
        print(f"epoch {epoch}: held-out error {error:.4f} m after {time.monotonic() - t:.1f} s", flush=True)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=6)
    ap.add_argument("--every", type=int, default=60)
    ap.add_argument("--width", type=int, default=64)
    ap.add_argument("--seed", type=int, default=2)
    main(ap.parse_args())
