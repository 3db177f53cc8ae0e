"""Metric learning on sensor fingerprints with P x K batches and a batch-hard triplet loss."""

import argparse
import random
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

STORE = Path("data") / "metric_pk"


def load_store(n=160_000, classes=900, dim=160):
    STORE.mkdir(parents=True, exist_ok=True)
    f = STORE / "fingerprints.npz"
    if not f.exists():
        rng = np.random.default_rng(21)
        y = rng.integers(0, classes, n)
        centers = rng.normal(size=(classes, dim)).astype(np.float32)
        x = (centers[y] + rng.standard_normal((n, dim), dtype=np.float32)).astype(np.float16)
        np.savez(f, x=x, y=y)
    z = np.load(f)
    return z["x"], z["y"]


class Fingerprints(Dataset):
    def __init__(self, x, y):
        self.x, self.y = torch.from_numpy(x), torch.from_numpy(y)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]

    def __getitems__(self, idx):
        idx = torch.as_tensor(idx)
        return self.x[idx], self.y[idx]


class PKBatches:
    def __init__(self, labels, p, k, batches):
        self.labels = labels
        self.classes = sorted(set(labels))
        self.p, self.k, self.batches = p, k, batches
        self.rng = random.Random(0)

    def members(self, c):
        return [i for i, y in enumerate(self.labels) if y == c]

    def __len__(self):
        return self.batches

    def __iter__(self):
        for _ in range(self.batches):
            batch = []
            for c in self.rng.sample(self.classes, self.p):
                batch += self.rng.choices(self.members(c), k=self.k)
            yield batch


class Embedder(nn.Module):
    def __init__(self, dim=160, width=384):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(dim, width),
            nn.BatchNorm1d(width),
            nn.GELU(),
            nn.Linear(width, width),
            nn.BatchNorm1d(width),
            nn.GELU(),
            nn.Linear(width, 64),
        )

    def forward(self, x):
        return F.normalize(self.net(x), dim=1)


def batch_hard(z, y, margin=0.3):
    d = (2 - 2 * z @ z.T).clamp_min(1e-6).sqrt()
    same = y[:, None] == y[None]
    pos = d.masked_fill(~same, 0).amax(1)
    neg = d.masked_fill(same, 9).amin(1)
    return F.relu(pos - neg + margin).mean()


def keep(cols):
    return cols


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("-p", type=int, default=12)
    ap.add_argument("-k", type=int, default=64)
    ap.add_argument("--steps", type=int, default=300)
    ap.add_argument("--workers", type=int, default=1)
    args = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x, y = load_store()
    loader = DataLoader(
        Fingerprints(x, y),
        batch_sampler=PKBatches(y.tolist(), args.p, args.k, args.steps),
        num_workers=args.workers,
        collate_fn=keep,
    )
    model = Embedder()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 3e-3, total_steps=args.steps)
    for step, (xb, yb) in enumerate(loader):
        if step == 5:
            t0 = time.perf_counter()
        loss = batch_hard(model(xb.float()), yb)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if step % 50 == 49:
            print(f"{step + 1:5d} {loss.item():.4f} lr {sched.get_last_lr()[0]:.2e}")
    r = (args.steps - 5) / (time.perf_counter() - t0)
    print(f"{r:.2f} steps/s = {1e3 / r:.1f} ms/step")


if __name__ == "__main__":
    main()
