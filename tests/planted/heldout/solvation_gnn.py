"""Message passing network that regresses solvation free energies of small organic molecules."""

import argparse
import math
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

ELEMENTS = ["H", "C", "N", "O", "F", "P", "S", "Cl", "Br", "I"]
MASS = [1.008, 12.011, 14.007, 15.999, 18.998, 30.974, 32.06, 35.45, 79.904, 126.9]
NEGATIVITY = [2.2, 2.55, 3.04, 3.44, 3.98, 2.19, 2.58, 3.16, 2.96, 2.66]
ATOM_WIDTH = len(ELEMENTS) + 7 + 4
BOND_WIDTH = 5


def prepare(folder: Path, count: int) -> Path:
    path = folder / "molecules.npz"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(4)
    sizes = rng.integers(18, 40, count)
    atoms = rng.choice(len(ELEMENTS), sizes.sum(), p=[0.4, 0.3, 0.08, 0.1, 0.03, 0.01, 0.03, 0.03, 0.01, 0.01])
    bonds, per_mol = [], []
    for n in sizes:
        parents = (rng.random(n - 1) * np.arange(1, n)).astype(np.int64)
        tree = np.stack([np.arange(1, n), parents, rng.integers(0, 4, n - 1)], 1)
        rings = np.stack([rng.integers(0, n, 3), rng.integers(0, n, 3), rng.integers(0, 4, 3)], 1)
        both = np.concatenate([tree, rings])
        bonds.append(both)
        per_mol.append(len(both))
    y = rng.normal(size=count).astype(np.float32)
    np.savez(
        path,
        sizes=sizes,
        atoms=atoms.astype(np.uint8),
        bonds=np.concatenate(bonds).astype(np.int16),
        per_mol=np.array(per_mol),
        y=y,
    )
    return path


class Molecules(Dataset):
    def __init__(self, path):
        raw = np.load(path)
        a = np.concatenate([[0], np.cumsum(raw["sizes"])])
        b = np.concatenate([[0], np.cumsum(raw["per_mol"])])
        atoms, bonds, y = raw["atoms"], raw["bonds"], raw["y"]
        self.items = [(atoms[a[i] : a[i + 1]], bonds[b[i] : b[i + 1]], float(y[i])) for i in range(len(y))]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def as_graph(mols):
    """A list of molecules -> one big disconnected graph."""
    x, owner, src, dst, e, y = [], [], [], [], [], []
    offset = 0
    for k, (z, bonds, target) in enumerate(mols):
        neighbours = {i: [] for i in range(len(z))}
        for u, v, order in bonds.tolist():
            neighbours[u].append((v, order))
            neighbours[v].append((u, order))
        for i, element in enumerate(z.tolist()):
            row = [1.0 if element == j else 0.0 for j in range(len(ELEMENTS))]
            degree = min(len(neighbours[i]), 6)
            row.extend(1.0 if degree == d else 0.0 for d in range(7))
            heavy = [j for j, _ in neighbours[i] if z[j] > 0]
            row.append(MASS[element] / 100.0)
            row.append(NEGATIVITY[element] / 4.0)
            row.append(len(heavy) / 4.0)
            row.append(math.sqrt(len(neighbours[i])))
            x.append(row)
            owner.append(k)
            for j, order in neighbours[i]:
                src.append(offset + i)
                dst.append(offset + j)
                feature = [0.0] * BOND_WIDTH
                feature[order] = 1.0
                feature[4] = abs(NEGATIVITY[element] - NEGATIVITY[int(z[j])])
                e.append(feature)
        offset += len(z)
        y.append(target)
    return (torch.tensor(x), torch.tensor([src, dst]), torch.tensor(e), torch.tensor(owner), torch.tensor(y))


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.message = nn.Linear(width + BOND_WIDTH, width)
        self.update = nn.Linear(2 * width, width)

    def forward(self, h, edges, e):
        m = torch.relu(self.message(torch.cat([h[edges[0]], e], 1)))
        pooled = torch.zeros_like(h).index_add_(0, edges[1], m)
        return h + torch.relu(self.update(torch.cat([h, pooled], 1)))


class Net(nn.Module):
    def __init__(self, width=40, depth=2):
        super().__init__()
        self.inp = nn.Linear(ATOM_WIDTH, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(depth))
        self.out = nn.Linear(width, 1)

    def forward(self, x, edges, e, owner, graphs):
        h = self.inp(x)
        for layer in self.layers:
            h = layer(h, edges, e)
        pooled = h.new_zeros(graphs, h.shape[1]).index_add_(0, owner, h)
        return self.out(pooled).squeeze(1)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--batch", type=int, default=96)
    p.add_argument("--molecules", type=int, default=12000)
    p.add_argument("--lr", type=float, default=1e-3)
    a = p.parse_args()
    torch.manual_seed(0)
    data = Molecules(prepare(Path("data_solvation_gnn"), a.molecules))
    loader = DataLoader(data, batch_size=a.batch, shuffle=True, collate_fn=as_graph, drop_last=True)
    net = Net()
    opt = torch.optim.AdamW(net.parameters(), lr=a.lr)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, a.epochs)
    for epoch in range(a.epochs):
        began = time.perf_counter()
        total = torch.zeros(())
        for x, edges, e, owner, y in loader:
            loss = nn.functional.smooth_l1_loss(net(x, edges, e, owner, len(y)), y)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            total += loss.detach()
        sched.step()
        print(f"epoch {epoch} loss {total.item() / len(loader):.4f}")
        print(f"epoch_seconds {time.perf_counter() - began:.3f}", flush=True)


if __name__ == "__main__":
    main()
