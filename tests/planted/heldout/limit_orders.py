"""Mid-price move from limit-order-book snapshots. All snapshots live in memory as they came out of the feed parser."""

import argparse
import os
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

LEVELS = 48  # 24 bid + 24 ask, price and size


def parse_feed(n, seed=2):
    """Stand-in for the feed parser: one Python list per snapshot, and its label."""
    rng = np.random.default_rng(seed)
    for start in range(0, n, 20_000):
        m = min(20_000, n - start)
        x = rng.standard_normal((m, LEVELS * 2), dtype=np.float32)
        y = (x[:, :8].sum(1) > 0).astype(int) + (x[:, 8:16].sum(1) > 0).astype(int)
        yield x, y


class SnapshotList(Dataset):
    def __init__(self, n):
        self.rows = []
        for x, y in parse_feed(n):
            self.rows += [{"book": b, "label": l} for b, l in zip(x.tolist(), y.tolist())]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        r = self.rows[i]
        return torch.tensor(r["book"]), r["label"]


class SnapshotArray(Dataset):
    """--fixed: the same snapshots in two arrays."""

    def __init__(self, n):
        xs, ys = zip(*parse_feed(n))
        self.x, self.y = np.concatenate(xs), np.concatenate(ys)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return torch.from_numpy(self.x[i].copy()), int(self.y[i])


class Mover(nn.Module):
    def __init__(self):
        super().__init__()
        layers, d = [], LEVELS * 2
        for h in (768, 768, 768, 384):
            layers += [nn.Linear(d, h), nn.GELU(), nn.LayerNorm(h)]
            d = h
        self.body, self.head = nn.Sequential(*layers), nn.Linear(d, 3)

    def forward(self, x):
        return self.head(self.body(x))


def rss_of_workers():
    out = []
    me = os.getpid()
    for pid in os.listdir("/proc"):
        try:
            with open(f"/proc/{pid}/stat") as f:
                ppid = int(f.read().rsplit(")", 1)[1].split()[1])
            if ppid == me:
                with open(f"/proc/{pid}/smaps_rollup") as f:
                    out.append(sum(int(l.split()[1]) for l in f if l.startswith("Private_Dirty")) // 1024)
        except (OSError, ValueError):
            pass
    return out


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--snapshots", type=int, default=500_000)
    ap.add_argument("--steps", type=int, default=1500)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.set_num_threads(1)
    data = (SnapshotArray if args.fixed else SnapshotList)(args.snapshots)
    loader = DataLoader(data, batch_size=256, shuffle=True, num_workers=2, persistent_workers=True, drop_last=True)
    net = Mover()
    opt = torch.optim.AdamW(net.parameters(), lr=5e-4)
    step, t = 0, time.time()
    while step < args.steps:
        for x, y in loader:
            loss = nn.functional.cross_entropy(net(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            if step % 200 == 0:
                print(
                    f"{step} loss {loss.item():.3f} {200 / (time.time() - t):.1f} it/s, worker private MB {rss_of_workers()}",
                    flush=True,
                )
                t = time.time()
            if step >= args.steps:
                break
