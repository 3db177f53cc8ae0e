import time
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import Dataset, DataLoader

HERE = Path() / "data_solubility"
MAX_ATOMS = 32
ATOM_DIM = 24


def build_library(path, n=40_000, seed=3):
    rng = np.random.default_rng(seed)
    atoms = rng.integers(29, MAX_ATOMS + 1, n)
    bonds = atoms + rng.integers(18, 24, n)
    owner = np.repeat(np.arange(n), bonds)
    src = (rng.random(bonds.sum()) * atoms[owner]).astype(np.int16)
    dst = (rng.random(bonds.sum()) * atoms[owner]).astype(np.int16)
    order = rng.choice([1.0, 1.5, 2.0], bonds.sum()).astype(np.float32)
    feats = rng.standard_normal((atoms.sum(), ATOM_DIM)).astype(np.float32)
    logs = rng.standard_normal(n).astype(np.float32)
    path.parent.mkdir(exist_ok=True)
    np.savez(path, atoms=atoms, bonds=bonds, src=src, dst=dst, order=order, feats=feats, logs=logs)


@dataclass
class MoleculeBatch:
    feats: torch.Tensor
    adj: torch.Tensor
    target: torch.Tensor


class Molecules(Dataset):
    def __init__(self, path):
        z = np.load(path)
        self.feats, self.src, self.dst = z["feats"], z["src"], z["dst"]
        self.order, self.logs = z["order"], z["logs"]
        self.a = np.concatenate([[0], np.cumsum(z["atoms"])])
        self.b = np.concatenate([[0], np.cumsum(z["bonds"])])

    def __len__(self):
        return len(self.logs)

    def __getitem__(self, i):
        a, b = slice(self.a[i], self.a[i + 1]), slice(self.b[i], self.b[i + 1])
        return self.feats[a], self.src[b], self.dst[b], self.order[b], self.logs[i]


def merge(samples):
    xs, srcs, dsts, orders, ys = zip(*samples)
    n_atoms = np.array([len(x) for x in xs])
    feats = np.zeros((len(xs), MAX_ATOMS, ATOM_DIM), np.float32)
    feats[np.arange(MAX_ATOMS) < n_atoms[:, None]] = np.concatenate(xs)
    adj = np.zeros((len(xs), MAX_ATOMS, MAX_ATOMS), np.float32)
    diag = np.arange(MAX_ATOMS)
    adj[:, diag, diag] = diag < n_atoms[:, None]
    g = np.repeat(np.arange(len(xs)), [len(s) for s in srcs])
    src, dst, order = np.concatenate(srcs), np.concatenate(dsts), np.concatenate(orders)
    adj[g, src, dst] = order
    adj[g, dst, src] = order
    return MoleculeBatch(torch.from_numpy(feats), torch.from_numpy(adj), torch.tensor(ys))


class DenseGCN(nn.Module):
    def __init__(self, width=128, depth=3):
        super().__init__()
        self.embed = nn.Linear(ATOM_DIM, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.head = nn.Linear(width, 1)

    def forward(self, feats, adj):
        adj = adj / adj.sum(-1, keepdim=True).clamp(min=1)
        h = self.embed(feats)
        for layer in self.layers:
            h = h + F.relu(layer(adj @ h))
        return self.head(h.mean(1)).squeeze(-1)


class Trainer:
    def __init__(self, model, loader, stop_after=None):
        self.model, self.loader, self.stop_after = model, loader, stop_after
        self.optim = torch.optim.Adam(model.parameters(), lr=3e-4)
        self.seen = 0
        self.began = None

    def step(self, batch):
        loss = F.smooth_l1_loss(self.model(batch.feats, batch.adj), batch.target)
        self.optim.zero_grad(set_to_none=True)
        loss.backward()
        self.optim.step()
        return loss.detach()

    def fit(self, epochs):
        for epoch in range(epochs):
            total = torch.zeros(())
            for batch in self.loader:
                total += self.step(batch)
                self.seen += 1
                if self.seen == 8:
                    self.began = time.time()
                if self.seen == self.stop_after:
                    print("seconds per step", round((time.time() - self.began) / (self.seen - 8), 4))
                    return
            print(f"[{epoch}] loss {total.item() / len(self.loader):.4f}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    library = HERE / "library.npz"
    if not library.exists():
        build_library(library)
    stop = int(sys.argv[sys.argv.index("--steps") + 1]) if "--steps" in sys.argv else None
    loader = DataLoader(
        Molecules(library),
        batch_size=128,
        shuffle=True,
        num_workers=2,
        collate_fn=merge,
        drop_last=True,
        persistent_workers=True,
    )
    Trainer(DenseGCN(), loader, stop).fit(30)
