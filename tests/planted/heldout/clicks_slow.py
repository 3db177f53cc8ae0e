"""Click-through rate on a skewed stream: rare positives are drawn more often."""

import argparse
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler


class Impressions(Dataset):
    """a whole batch of rows at once: dataset[array of rows]"""

    def __init__(self, n=2_000_000, k=16, seed=4):
        rng = np.random.default_rng(seed)
        self.x = rng.standard_normal((n, k), dtype=np.float32)
        self.click = (rng.random(n) < 0.03).astype(np.float32)

    def __len__(self):
        return len(self.click)

    def __getitem__(self, rows):
        return torch.from_numpy(self.x[rows]), torch.from_numpy(self.click[rows])


class RareFirst(Sampler):
    def __init__(self, click, batch, batches, boost=12.0, seed=0):
        self.weight = np.where(click > 0, boost, 1.0)
        self.batch, self.batches = batch, batches
        self.rng = np.random.default_rng(seed)

    def __len__(self):
        return self.batches

    def __iter__(self):
        for _ in range(self.batches):
            p = self.weight / self.weight.sum()
            yield self.rng.choice(len(p), self.batch, replace=False, p=p)


class CTR(nn.Module):
    def __init__(self, k=16, h=512):
        super().__init__()
        self.deep = nn.Sequential(nn.Linear(k, h), nn.SiLU(), nn.Linear(h, h), nn.SiLU(), nn.Linear(h, 1))
        self.wide = nn.Linear(k, 1)

    def forward(self, x):
        return (self.deep(x) + self.wide(x)).squeeze(1)


def run(steps, epochs):
    ds = Impressions()
    loader = DataLoader(ds, sampler=RareFirst(ds.click, batch=512, batches=800), batch_size=None)
    model = CTR()
    opt = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    lossf = nn.BCEWithLogitsLoss()
    n, t0 = 0, time.perf_counter()
    for e in range(epochs):
        avg = 0.0
        for x, click in loader:
            opt.zero_grad()
            loss = lossf(model(x), click)
            loss.backward()
            opt.step()
            avg = 0.99 * avg + 0.01 * loss.item()
            n += 1
            if n == steps:
                return print(f"{(time.perf_counter() - t0) / n:.4f} s/step")
        print(f"[{e}] {avg:.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=25)
    ns = parser.parse_args()
    torch.set_num_threads(1)
    run(ns.steps, ns.epochs)
