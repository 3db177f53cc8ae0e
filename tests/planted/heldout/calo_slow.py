"""Calorimeter showers -> energy regression. Hits are lists of (layer, cell, energy)."""

import time
from dataclasses import dataclass
import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, random_split


@dataclass
class Cfg:
    events: int = 1000
    layers: int = 12
    cells: int = 64
    batch: int = 64
    epochs: int = 20
    workers: int = 1
    lr: float = 1e-3


@dataclass
class Batch:
    grid: torch.Tensor
    count: torch.Tensor
    target: torch.Tensor


class Showers(Dataset):
    def __init__(self, cfg):
        rng = np.random.default_rng(0)
        self.n = rng.integers(20, 120, cfg.events)
        self.off = np.concatenate([[0], np.cumsum(self.n)])
        tot = self.off[-1]
        self.layer = rng.integers(0, cfg.layers, tot).astype(np.int32)
        self.cell = rng.integers(0, cfg.cells, tot).astype(np.int32)
        self.e = rng.exponential(1.0, tot).astype(np.float32)

    def __len__(self):
        return len(self.n)

    def __getitem__(self, i):
        s = slice(self.off[i], self.off[i + 1])
        return self.layer[s], self.cell[s], self.e[s]


def make_collate(cfg):
    def collate(events):
        B = len(events)
        grid = torch.zeros(B, cfg.layers, cfg.cells)
        count = torch.zeros(B, cfg.layers)
        for b, (layer, cell, e) in enumerate(events):
            for l, c, v in zip(layer, cell, e):
                grid[b, l, c] += float(v)
                count[b, l] += 1
        target = torch.stack([grid[b].sum() for b in range(B)])
        return Batch(grid, count, target)

    return collate


class Net(torch.nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.inp = torch.nn.Linear(cfg.layers * (cfg.cells + 1), 1024)
        self.mid = torch.nn.ModuleList(torch.nn.Linear(1024, 1024) for _ in range(3))
        self.out = torch.nn.Linear(1024, 1)

    def forward(self, b):
        h = F.gelu(self.inp(torch.cat([b.grid.flatten(1), b.count], 1)))
        for m in self.mid:
            h = h + F.gelu(m(h))
        return self.out(h).squeeze(1)


if __name__ == "__main__":
    cfg = Cfg()
    torch.manual_seed(1)
    train, _ = random_split(Showers(cfg), [0.9, 0.1])
    loader = DataLoader(
        train,
        cfg.batch,
        shuffle=True,
        num_workers=cfg.workers,
        collate_fn=make_collate(cfg),
        persistent_workers=cfg.workers > 0,
        multiprocessing_context="fork",
    )
    net = Net(cfg)
    opt = torch.optim.Adam(net.parameters(), cfg.lr)
    for epoch in range(cfg.epochs):
        t = time.perf_counter()
        for k, batch in enumerate(loader):
            loss = F.mse_loss(net(batch), batch.target / 100)
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(epoch, round(loss.item(), 4), f"{time.perf_counter() - t:.2f} s/epoch", flush=True)
