"""Two-tower news recommendation, in-batch negatives, one click per reader and batch."""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--data", type=Path, default=Path("data_news_towers"))
parser.add_argument("--readers", type=int, default=9000)
parser.add_argument("--articles", type=int, default=12000)
parser.add_argument("--clicks", type=int, default=90_000)
parser.add_argument("--batch", type=int, default=512)
parser.add_argument("--epochs", type=int, default=3)


def clicks(args):
    path = args.data / "clicks.npz"
    if not path.exists():
        args.data.mkdir(exist_ok=True)
        rng = np.random.default_rng(1)
        np.savez(
            path, reader=rng.integers(0, args.readers, args.clicks), article=rng.integers(0, args.articles, args.clicks)
        )
    with np.load(path) as z:
        return z["reader"], z["article"]


def distinct_order(reader, rng):
    """Row order such that neighbours belong to different readers: the k-th click of everyone comes in round k."""
    perm = rng.permutation(len(reader))
    by_reader = perm[np.argsort(reader[perm], kind="stable")]
    sorted_reader = reader[by_reader]
    first = np.flatnonzero(np.r_[True, sorted_reader[1:] != sorted_reader[:-1]])
    turn = np.arange(len(reader)) - np.repeat(first, np.diff(np.r_[first, len(reader)]))
    return by_reader[np.lexsort((rng.random(len(reader)), turn))]


class Tower(nn.Module):
    def __init__(self, count, width=64, hidden=768):
        super().__init__()
        self.table = nn.Embedding(count, width, sparse=True)
        self.mlp = nn.Sequential(
            nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(), nn.Linear(hidden, width)
        )

    def forward(self, ids):
        return nn.functional.normalize(self.mlp(self.table(ids)), dim=1)


def main():
    args = parser.parse_args()
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    reader, article = clicks(args)
    left, right = Tower(args.readers), Tower(args.articles)
    sgd = torch.optim.SGD([left.table.weight, right.table.weight], lr=0.3)
    adam = torch.optim.Adam([*left.mlp.parameters(), *right.mlp.parameters()], lr=1e-3)
    targets = torch.arange(args.batch)
    for epoch in range(args.epochs):
        t0 = time.perf_counter()
        order = distinct_order(reader, rng)
        steps = len(order) // args.batch
        losses = torch.zeros(steps)
        for step in range(steps):
            rows = order[step * args.batch : (step + 1) * args.batch]
            u, v = torch.from_numpy(reader[rows]), torch.from_numpy(article[rows])
            loss = nn.functional.cross_entropy(left(u) @ right(v).T * 12.0, targets)
            sgd.zero_grad()
            adam.zero_grad()
            loss.backward()
            sgd.step()
            adam.step()
            losses[step] = loss.detach()
        print(f"epoch {epoch} nce {losses.mean().item():.4f}")
        print(f"epoch_seconds {time.perf_counter() - t0:.3f}", flush=True)


if __name__ == "__main__":
    main()
