"""Reaction barrier heights from molecular graphs. Everything lives in flat arrays, a batch is cut out of them."""

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    folder: Path = Path("data_barrier_heights")
    molecules: int = 8000
    batch: int = 96
    width: int = 128
    depth: int = 4
    epochs: int = 3
    lr: float = 8e-4


def build(cfg: Config) -> Path:
    path = cfg.folder / "graphs.npz"
    if path.exists():
        return path
    cfg.folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(9)
    sizes = rng.integers(18, 40, cfg.molecules)
    edges, counts = [], []
    for n in sizes:
        parents = (rng.random(n - 1) * np.arange(1, n)).astype(np.int64)
        pairs = np.stack([np.arange(1, n), parents])
        pairs = np.concatenate([pairs, rng.integers(0, n, (2, 3))], 1)
        edges.append(np.concatenate([pairs, pairs[::-1]], 1))
        counts.append(edges[-1].shape[1])
    total_e = int(sum(counts))
    np.savez(
        path,
        sizes=sizes,
        counts=np.array(counts),
        edges=np.concatenate(edges, 1),
        atoms=rng.normal(size=(int(sizes.sum()), 21)).astype(np.float32),
        bonds=rng.normal(size=(total_e, 5)).astype(np.float32),
        y=rng.normal(size=cfg.molecules).astype(np.float32),
    )
    return path


class GraphStore:
    """CSR-like storage; `batch(ids)` needs no loop over molecules."""

    def __init__(self, path):
        with np.load(path) as z:
            self.atoms, self.bonds, self.edges, self.y = z["atoms"], z["bonds"], z["edges"], z["y"]
            self.sizes, self.counts = z["sizes"], z["counts"]
        self.atom_start = np.cumsum(self.sizes) - self.sizes
        self.edge_start = np.cumsum(self.counts) - self.counts

    def __len__(self):
        return len(self.y)

    @staticmethod
    def _spread(start, length):
        ends = np.cumsum(length)
        return np.repeat(start - (ends - length), length) + np.arange(ends[-1])

    def batch(self, ids):
        sizes, counts = self.sizes[ids], self.counts[ids]
        atoms = self._spread(self.atom_start[ids], sizes)
        bonds = self._spread(self.edge_start[ids], counts)
        shift = np.repeat(np.cumsum(sizes) - sizes, counts)
        owner = np.repeat(np.arange(len(ids)), sizes)
        parts = (self.atoms[atoms], self.edges[:, bonds] + shift, self.bonds[bonds], owner, self.y[ids])
        return tuple(torch.from_numpy(np.ascontiguousarray(part)) for part in parts)


class Conv(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.msg = nn.Sequential(nn.Linear(width + 5, width), nn.SiLU(), nn.Linear(width, width))
        self.upd = nn.Sequential(nn.Linear(2 * width, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, h, edges, e):
        m = self.msg(torch.cat((h.index_select(0, edges[0]), e), 1))
        agg = torch.zeros_like(h).index_add(0, edges[1], m)
        return h + self.upd(torch.cat((h, agg), 1))


class BarrierNet(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.embed = nn.Linear(21, cfg.width)
        self.convs = nn.ModuleList([Conv(cfg.width) for _ in range(cfg.depth)])
        self.head = nn.Sequential(nn.Linear(cfg.width, cfg.width), nn.SiLU(), nn.Linear(cfg.width, 1))

    def forward(self, atoms, edges, bonds, owner, graphs):
        h = self.embed(atoms)
        for conv in self.convs:
            h = conv(h, edges, bonds)
        return self.head(h.new_zeros(graphs, h.size(1)).index_add(0, owner, h)).squeeze(-1)


def train_epoch(model, opt, store, order, size):
    total, steps = torch.zeros(()), len(order) // size
    for k in range(steps):
        atoms, edges, bonds, owner, y = store.batch(order[k * size : (k + 1) * size])
        loss = F.l1_loss(model(atoms, edges, bonds, owner, len(y)), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.detach()
    return (total / steps).item()


if __name__ == "__main__":
    cfg = Config()
    torch.manual_seed(1)
    rng = np.random.default_rng(1)
    store = GraphStore(build(cfg))
    model = BarrierNet(cfg)
    opt = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    for epoch in range(cfg.epochs):
        t = time.perf_counter()
        mae = train_epoch(model, opt, store, rng.permutation(len(store)), cfg.batch)
        print(f"[{epoch}] mae={mae:.4f}")
        print("epoch_seconds", round(time.perf_counter() - t, 3), flush=True)
