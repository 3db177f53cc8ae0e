"""Solubility + logP regression on small molecules with a dense message-passing net."""

import os
import pickle
import time
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

ELEMENTS = ["C", "N", "O", "S", "F", "Cl"]
ELEM_IDX = {e: i for i, e in enumerate(ELEMENTS)}
N_BOND = 4


@dataclass
class Config:
    data: str = "data_retrosynthesis/mols.pkl"
    batch: int = 64
    epochs: int = 15
    width: int = 112
    depth: int = 4
    lr: float = 5e-4
    max_atoms: int = 28


def synthesize(path):
    if os.path.exists(path):
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    rng = np.random.default_rng(5)
    mols = []
    for _ in range(5000):
        n = int(rng.integers(25, 29))
        elems = rng.choice(6, size=n, p=[0.6, 0.12, 0.15, 0.05, 0.05, 0.03])
        parents = [int(rng.integers(max(0, k - 3), k)) for k in range(1, n)]
        bonds = [(p, k + 1, int(rng.integers(N_BOND))) for k, p in enumerate(parents)]
        for _ in range(3):
            a, b = sorted(rng.choice(n, 2, replace=False).tolist())
            bonds.append((a, b, 3))
        xyz = np.cumsum(rng.normal(size=(n, 3)), 0).astype(np.float32)
        charge = rng.normal(0, 0.2, n).astype(np.float32)
        mols.append(
            {
                "elem": [ELEMENTS[e] for e in elems],
                "bonds": bonds,
                "xyz": xyz,
                "charge": charge,
                "y": np.array([charge.sum() + (elems == 2).sum() * 0.3, len(bonds) / n], np.float32),
            }
        )
    with open(path + ".tmp", "wb") as f:
        pickle.dump(mols, f)
    os.rename(path + ".tmp", path)


class Molecules(Dataset):
    def __init__(self, path):
        with open(path, "rb") as f:
            self.mols = pickle.load(f)

    def __len__(self):
        return len(self.mols)

    def __getitem__(self, i):
        return self.mols[i]


class Batcher:
    """Dense node features, per-type adjacency and node mask."""

    def __init__(self, max_atoms):
        self.m = max_atoms

    def __call__(self, mols):
        B, M = len(mols), self.m
        x = torch.zeros(B, M, len(ELEMENTS) + 4)
        adj = torch.zeros(B, N_BOND, M, M)
        mask = torch.zeros(B, M)
        for b, mol in enumerate(mols):
            for a, sym in enumerate(mol["elem"]):
                x[b, a, ELEMENTS.index(sym)] = 1.0
                x[b, a, -4] = float(mol["charge"][a])
                for k in range(3):
                    x[b, a, len(ELEMENTS) + 1 + k] = float(mol["xyz"][a, k] - mol["xyz"][:, k].mean())
                mask[b, a] = 1.0
            for i, j, t in mol["bonds"]:
                adj[b, t, i, j] = 1.0
                adj[b, t, j, i] = 1.0
        y = torch.stack([torch.from_numpy(mol["y"]) for mol in mols])
        return x, adj, mask, y


class Layer(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.msg = nn.Linear(w, w * N_BOND)
        self.upd = nn.Sequential(nn.Linear(2 * w, 2 * w), nn.SiLU(), nn.Linear(2 * w, w))
        self.norm = nn.LayerNorm(w)

    def forward(self, h, adj, mask):
        B, M, w = h.shape
        m = self.msg(h).view(B, M, N_BOND, w).transpose(1, 2)
        agg = torch.matmul(adj, m).sum(1)
        return self.norm(h + self.upd(torch.cat([h, agg], -1))) * mask.unsqueeze(-1)


class Net(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.inp = nn.Linear(len(ELEMENTS) + 4, cfg.width)
        self.layers = nn.ModuleList(Layer(cfg.width) for _ in range(cfg.depth))
        self.out_a = nn.Linear(cfg.width, 1)
        self.out_b = nn.Linear(cfg.width, 1)

    def forward(self, x, adj, mask):
        h = self.inp(x) * mask.unsqueeze(-1)
        for l in self.layers:
            h = l(h, adj, mask)
        g = h.sum(1) / mask.sum(1, keepdim=True)
        return self.out_a(g).squeeze(-1), self.out_b(g).squeeze(-1)


def train(cfg):
    synthesize(cfg.data)
    torch.manual_seed(0)
    loader = DataLoader(Molecules(cfg.data), cfg.batch, shuffle=True, drop_last=True, collate_fn=Batcher(cfg.max_atoms))
    net = Net(cfg)
    opt = torch.optim.AdamW(net.parameters(), cfg.lr)
    for epoch in range(cfg.epochs):
        t0 = time.time()
        for k, (x, adj, mask, y) in enumerate(loader, 1):
            a, b = net(x, adj, mask)
            loss = nn.functional.smooth_l1_loss(a, y[:, 0]) + 2.0 * nn.functional.mse_loss(b, y[:, 1])
            opt.zero_grad()
            loss.backward()
            opt.step()
            if k % 13 == 0:
                print(f"[{epoch}:{k}] {loss.item():.4f} {k * cfg.batch / (time.time() - t0):.0f} samples/s", flush=True)
        print(f"epoch {epoch} {time.time() - t0:.1f}s", flush=True)


if __name__ == "__main__":
    train(Config())
