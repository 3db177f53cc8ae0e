"""Predict the next trade direction from the state of a replayed order book.

The event log can only be replayed from its start, so every worker replays the day and yields its own share of snapshots.
"""

import argparse
import time

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

TICKS, EVERY = 200, 1200


def day_log(n, seed=4):
    rng = np.random.default_rng(seed)
    side = rng.integers(0, 2, n)
    tick = np.clip(rng.normal(100 + 8 * np.where(side == 1, 1, -1), 12, n).round(), 0, TICKS - 1).astype(int)
    return np.stack([side, tick, rng.integers(-40, 60, n)], 1).astype(np.int16)


class BookReplay(IterableDataset):
    def __init__(self, log):
        self.log = log

    def features(self, bid, ask, last):
        b, a = np.asarray(bid, np.float32), np.asarray(ask, np.float32)
        cum = np.concatenate([np.cumsum(b[::-1]), np.cumsum(a)])
        prof = np.concatenate([np.convolve(b, np.ones(9) / 9, "same"), np.convolve(a, np.ones(9) / 9, "same")])
        x = np.concatenate([np.log1p(cum), np.log1p(np.maximum(prof, 0))]).astype(np.float32)
        return torch.from_numpy(x), torch.tensor(float(last))

    def __iter__(self):
        info = get_worker_info()
        wid, n_workers = (info.id, info.num_workers) if info else (0, 1)
        bid, ask, snap = [0] * TICKS, [0] * TICKS, 0
        for start in range(0, len(self.log), EVERY):
            for side, tick, qty in self.log[start : start + EVERY].tolist():
                book = ask if side else bid
                left = book[tick] + qty
                book[tick] = left if left > 0 else 0
            if snap % n_workers == wid:
                yield self.features(bid, ask, side)
            snap += 1


class Direction(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.layers = nn.Sequential(
            nn.LayerNorm(4 * TICKS), nn.Linear(4 * TICKS, width), nn.ReLU(), nn.Linear(width, 1)
        )

    def forward(self, x):
        return self.layers(x).squeeze(-1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--events", type=int, default=4_800_000)
    ap.add_argument("--epochs", type=int, default=8)
    ap.add_argument("--workers", type=int, default=16)
    ap.add_argument("--fixed", action="store_true", help="as many workers as cores (2)")
    args = ap.parse_args()
    torch.set_num_threads(1)
    workers = 2 if args.fixed else args.workers
    loader = DataLoader(BookReplay(day_log(args.events)), batch_size=32, num_workers=workers, persistent_workers=True)
    model = Direction()
    opt = torch.optim.Adam(model.parameters(), lr=5e-4)
    bce = nn.BCEWithLogitsLoss()
    steps = 0
    for epoch in range(args.epochs):
        t0, first = time.time(), steps
        for x, y in loader:
            loss = bce(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            steps += 1
        dt = time.time() - t0
        print(
            f"epoch {epoch} steps {steps - first} loss {loss.item():.4f} {dt / (steps - first) * 1e3:.1f} ms/step",
            flush=True,
        )


if __name__ == "__main__":
    main()
