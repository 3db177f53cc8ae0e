# Energy regression on small random clusters of atoms, a two-round message-passing net.
import argparse
import os
import time
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
import torch.utils.data as tud

NEIGHBOURS = 6
SPECIES = 10


@dataclass
class Cluster:
    species: torch.Tensor  # (n,)
    coords: torch.Tensor  # (n, 3)
    bonds: torch.Tensor  # (2, e)
    energy: torch.Tensor  # (1,)


@dataclass
class Graphs:
    species: torch.Tensor
    coords: torch.Tensor
    bonds: torch.Tensor
    owner: torch.Tensor
    energy: torch.Tensor


def build(path, count):
    if os.path.exists(path):
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    rng = np.random.default_rng(17)
    sizes = rng.integers(22, 39, count)
    species, coords, bonds, energies = [], [], [], []
    for n in sizes:
        z = rng.integers(0, SPECIES, n)
        xyz = rng.normal(0, 2.2, (n, 3))
        d = np.sqrt(((xyz[:, None] - xyz[None]) ** 2).sum(-1)) + 1e3 * np.eye(n)
        near = np.argsort(d, axis=1)[:, :NEIGHBOURS]
        bonds.append(np.stack([near.reshape(-1), np.repeat(np.arange(n), NEIGHBOURS)]))
        energies.append(np.take_along_axis(1 / d, near, 1).sum() / n + 0.1 * z.mean())
        species.append(z)
        coords.append(xyz)
    np.savez(
        path,
        start=np.concatenate([[0], np.cumsum(sizes)]),
        species=np.concatenate(species).astype(np.int64),
        coords=np.concatenate(coords).astype(np.float32),
        bonds=np.concatenate(bonds, axis=1).astype(np.int64),
        energy=np.asarray(energies, dtype=np.float32),
    )


class Clusters(tud.Dataset):
    def __init__(self, path):
        with np.load(path) as z:
            self.start = z["start"]
            self.species = z["species"]
            self.coords = z["coords"]
            self.bonds = z["bonds"]
            self.energy = z["energy"]

    def __len__(self):
        return len(self.energy)

    def __getitem__(self, i):
        a, b = int(self.start[i]), int(self.start[i + 1])
        return Cluster(
            torch.from_numpy(self.species[a:b].copy()),
            torch.from_numpy(self.coords[a:b].copy()),
            torch.from_numpy(self.bonds[:, a * NEIGHBOURS : b * NEIGHBOURS].copy()),
            torch.from_numpy(self.energy[i : i + 1].copy()),
        )


def merge(items):
    sizes = [len(c.species) for c in items]
    shift, bonds = 0, []
    for c, n in zip(items, sizes):
        bonds.append(c.bonds + shift)
        shift += n
    return Graphs(
        torch.cat([c.species for c in items]),
        torch.cat([c.coords for c in items]),
        torch.cat(bonds, dim=1),
        torch.repeat_interleave(torch.arange(len(items)), torch.tensor(sizes)),
        torch.cat([c.energy for c in items]),
    )


class Round(nn.Module):
    def __init__(self, width, radial):
        super().__init__()
        self.edge = nn.Sequential(nn.Linear(2 * width + radial, width), nn.SiLU(), nn.Linear(width, width))
        self.node = nn.Linear(width, width)

    def forward(self, h, src, dst, rbf):
        message = self.edge(torch.cat([h[src], h[dst], rbf], dim=1))
        return h + self.node(torch.zeros_like(h).index_add(0, dst, message))


class EnergyNet(nn.Module):
    def __init__(self, width=80, radial=16):
        super().__init__()
        self.embed = nn.Embedding(SPECIES, width)
        self.rounds = nn.ModuleList([Round(width, radial) for _ in range(2)])
        self.out = nn.Linear(width, 1)
        self.register_buffer("centres", torch.linspace(0, 6, radial))

    def forward(self, g: Graphs):
        src, dst = g.bonds
        length = (g.coords[src] - g.coords[dst]).norm(dim=1, keepdim=True)
        rbf = torch.exp(-2 * (length - self.centres) ** 2)
        h = self.embed(g.species)
        for r in self.rounds:
            h = r(h, src, dst, rbf)
        per_atom = self.out(h).squeeze(1)
        total = torch.zeros(len(g.energy)).index_add(0, g.owner, per_atom)
        return total / torch.bincount(g.owner, minlength=len(g.energy))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--data", default="molgraph_data/clusters.npz")
    p.add_argument("--count", type=int, default=3840)
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--epochs", type=int, default=16)
    a = p.parse_args()
    torch.manual_seed(0)
    build(a.data, a.count)
    loader = tud.DataLoader(
        Clusters(a.data),
        batch_size=a.batch,
        shuffle=True,
        num_workers=2,
        persistent_workers=True,
        collate_fn=merge,
    )
    net = EnergyNet()
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for epoch in range(a.epochs):
        t0, running = time.perf_counter(), 0.0
        for graphs in loader:
            loss = nn.functional.smooth_l1_loss(net(graphs), graphs.energy)
            opt.zero_grad()
            loss.backward()
            opt.step()
            running += float(loss.detach())
        print(f"[{epoch:02d}] smooth-l1 {running / len(loader):.5f}  {time.perf_counter() - t0:.1f}s", flush=True)


if __name__ == "__main__":
    main()
