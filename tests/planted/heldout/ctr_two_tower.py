"""Click-through prediction, two-tower model, from a gzipped CSV of impressions. Clicks are rare, so draws are balanced."""

import argparse
import csv
import gzip
import os
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, Sampler

USERS, ITEMS, DENSE = 4000, 2500, 6


def write_csv(path, rows=40_000):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if os.path.exists(path):
        return
    rng = np.random.default_rng(2)
    u, it = rng.integers(0, USERS, rows), rng.integers(0, ITEMS, rows)
    d = rng.normal(size=(rows, DENSE)).round(4)
    click = (rng.random(rows) < 0.03 + 0.05 * (d[:, 0] > 1)).astype(int)
    with gzip.open(path + ".tmp", "wt", newline="", compresslevel=1) as f:
        w = csv.writer(f)
        w.writerow(["user", "item"] + [f"d{k}" for k in range(DENSE)] + ["click"])
        for r in range(rows):
            w.writerow([u[r], it[r], *d[r], click[r]])
    os.replace(path + ".tmp", path)


class Impressions(Dataset):
    def __init__(self, path):
        with gzip.open(path, "rt", newline="") as f:
            reader = csv.reader(f)
            next(reader)
            table = np.array([[float(v) for v in row] for row in reader], dtype=np.float32)
        self.user = torch.from_numpy(table[:, 0].astype(np.int64))
        self.item = torch.from_numpy(table[:, 1].astype(np.int64))
        self.dense = torch.from_numpy(table[:, 2 : 2 + DENSE].copy())
        self.click = torch.from_numpy(table[:, -1].copy())

    def __len__(self):
        return len(self.click)

    def __getitem__(self, ids):
        ids = torch.as_tensor(ids)
        return self.user[ids], self.item[ids], self.dense[ids], self.click[ids]


class BalancedBatches(Sampler):
    """Batches in which clicks and non-clicks are about equally frequent."""

    def __init__(self, labels, batch_size, steps, seed=0):
        labels = labels.numpy()
        weight = np.where(labels > 0, 0.5 / max(labels.sum(), 1), 0.5 / (labels == 0).sum()).astype(np.float64)
        self.p = weight / weight.sum()
        self.batch_size, self.steps = batch_size, steps
        self.rng = np.random.default_rng(seed)

    def __len__(self):
        return self.steps

    def __iter__(self):
        for _ in range(self.steps):
            batch = []
            while len(batch) < self.batch_size:
                batch.append(int(self.rng.choice(len(self.p), p=self.p)))
            yield batch


class BalancedEpoch(BalancedBatches):
    def __iter__(self):
        order = self.rng.choice(len(self.p), size=(self.steps, self.batch_size), p=self.p)
        for row in order:
            yield row


class TwoTower(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.u, self.i = nn.Embedding(USERS, dim), nn.Embedding(ITEMS, dim)
        self.user_mlp = nn.Sequential(nn.Linear(dim + DENSE, 128), nn.ReLU(), nn.Linear(128, 64))
        self.item_mlp = nn.Sequential(nn.Linear(dim, 128), nn.ReLU(), nn.Linear(128, 64))

    def forward(self, user, item, dense):
        a = self.user_mlp(torch.cat([self.u(user), dense], 1))
        b = self.item_mlp(self.i(item))
        return (a * b).sum(1)


def train(args):
    path = os.path.join(args.data, "impressions.csv.gz")
    write_csv(path)
    data = Impressions(path)
    kind = BalancedEpoch if args.fixed else BalancedBatches
    batches = kind(data.click, args.batch_size, args.steps)
    loader = DataLoader(data, sampler=batches, batch_size=None)
    model = TwoTower()
    opt = torch.optim.Adagrad(model.parameters(), lr=0.05)
    for epoch in range(args.epochs):
        start, n, loss_sum = time.time(), 0, 0.0
        for user, item, dense, click in loader:
            loss = F.binary_cross_entropy_with_logits(model(user, item, dense), click)
            opt.zero_grad()
            loss.backward()
            opt.step()
            loss_sum += loss.item()
            n += len(click)
        print(f"epoch {epoch} bce {loss_sum / args.steps:.4f} {n / (time.time() - start):.1f} samples/s", flush=True)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("data")
    ap.add_argument("--epochs", type=int, default=600)
    ap.add_argument("--batch-size", type=int, default=256)
    ap.add_argument("--steps", type=int, default=80)
    ap.add_argument("--fixed", action="store_true")
    train(ap.parse_args())
