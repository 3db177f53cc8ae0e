"""Next item of a grocery basket; saved once per epoch, atomically."""

import os
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

WORK = Path("data_grocery_basket")
ITEMS, WIDTH, BATCH, CONTEXT = 6000, 96, 256, 6


def baskets(n=60_000):
    f = WORK / "baskets.npy"
    if not f.exists():
        WORK.mkdir(exist_ok=True)
        np.save(f, np.random.default_rng(4).integers(0, ITEMS, (n, CONTEXT + 1)))
    return torch.from_numpy(np.load(f))


class NextItem(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(ITEMS, WIDTH)
        self.mix = nn.Sequential(nn.Linear(CONTEXT * WIDTH, 512), nn.GELU(), nn.Linear(512, WIDTH))

    def forward(self, context):
        return self.mix(self.table(context).flatten(1)) @ self.table.weight.T


def save(path, epoch, model, opt):
    part = path.with_suffix(".part")
    torch.save({"epoch": epoch, "model": model.state_dict(), "opt": opt.state_dict()}, part)
    os.replace(part, path)


def main():
    torch.manual_seed(0)
    rows = baskets()
    model = NextItem()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(3):
        t0 = time.perf_counter()
        total, steps = torch.zeros(()), 0
        for ids in torch.randperm(len(rows)).split(BATCH):
            batch = rows[ids]
            loss = nn.functional.cross_entropy(model(batch[:, :-1]), batch[:, -1])
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.detach()
            steps += 1
        save(WORK / "last.pt", epoch, model, opt)
        print(f"epoch {epoch} xent {total.item() / steps:.4f}")
        print(f"epoch_seconds {time.perf_counter() - t0:.3f}", flush=True)


if __name__ == "__main__":
    main()
