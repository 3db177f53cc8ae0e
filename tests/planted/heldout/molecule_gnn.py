"""Predict a molecular property with a small message-passing network over dense and sparse views of the graph."""

import argparse
import os
import pickle
import random
import time
from functools import partial

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

FEATS = 24


def prepare(folder, n=3000):
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "graphs.pkl")
    if not os.path.exists(path):
        rng = np.random.default_rng(11)
        graphs = []
        for _ in range(n):
            k = int(rng.integers(22, 30))
            src = np.concatenate([np.arange(k - 1), rng.integers(0, k, 2 * k)])
            dst = np.concatenate([np.arange(1, k), rng.integers(0, k, 2 * k)])
            x = rng.normal(size=(k, FEATS)).astype(np.float32)
            y = float(x[:, 0].sum() + 0.1 * (x[src, 1] * x[dst, 2]).sum())
            graphs.append(
                {
                    "x": x,
                    "edges": np.stack([src, dst]).astype(np.int64),
                    "w": rng.uniform(0.2, 1, len(src)).astype(np.float32),
                    "y": y,
                }
            )
        with open(path + ".part", "wb") as f:
            pickle.dump(graphs, f)
        os.replace(path + ".part", path)
    return path


class Molecules(Dataset):
    def __init__(self, path):
        with open(path, "rb") as f:
            self.graphs = pickle.load(f)

    def __len__(self):
        return len(self.graphs)

    def __getitem__(self, i):
        return self.graphs[i]


def batch_graphs(graphs):
    """Disjoint union of the graphs, with degree-normalised edge weights."""
    nodes, sources, targets, weights, owner, labels = [], [], [], [], [], []
    offset = 0
    for g, graph in enumerate(graphs):
        degree = {}
        for e in range(graph["edges"].shape[1]):
            v = int(graph["edges"][1, e])
            degree[v] = degree.get(v, 0.0) + float(graph["w"][e])
        for e in range(graph["edges"].shape[1]):
            u, v = int(graph["edges"][0, e]), int(graph["edges"][1, e])
            sources.append(u + offset)
            targets.append(v + offset)
            weights.append(float(graph["w"][e]) / degree[v])
        for row in graph["x"]:
            nodes.append([float(value) for value in row])
            owner.append(g)
        labels.append(graph["y"])
        offset += graph["x"].shape[0]
    return (
        torch.tensor(nodes),
        torch.tensor([sources, targets]),
        torch.tensor(weights),
        torch.tensor(owner),
        torch.tensor(labels),
    )


def batch_arrays(graphs):
    sizes = np.array([len(g["x"]) for g in graphs])
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    edges = np.concatenate([g["edges"] + s for g, s in zip(graphs, starts)], 1)
    w = np.concatenate([g["w"] for g in graphs])
    degree = np.bincount(edges[1], w, minlength=int(sizes.sum()))
    return (
        torch.from_numpy(np.concatenate([g["x"] for g in graphs])),
        torch.from_numpy(edges),
        torch.from_numpy((w / degree[edges[1]]).astype(np.float32)),
        torch.from_numpy(np.repeat(np.arange(len(graphs)), sizes)),
        torch.tensor([g["y"] for g in graphs]),
    )


class Net(nn.Module):
    def __init__(self, dim=48, layers=2):
        super().__init__()
        self.inp = nn.Linear(FEATS, dim)
        self.msg = nn.ModuleList(nn.Linear(dim, dim) for _ in range(layers))
        self.upd = nn.ModuleList(nn.Linear(2 * dim, dim) for _ in range(layers))
        self.out = nn.Linear(dim, 1)

    def forward(self, x, edges, w, owner, n):
        h = torch.relu(self.inp(x))
        for msg, upd in zip(self.msg, self.upd):
            m = msg(h)[edges[0]] * w[:, None]
            agg = torch.zeros_like(h).index_add(0, edges[1], m)
            h = torch.relu(upd(torch.cat([h, agg], 1))) + h
        pooled = torch.zeros(n, h.shape[1]).index_add(0, owner, h)
        return self.out(pooled).squeeze(1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--epochs", type=int, default=500)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fixed", action="store_true")
    args = parser.parse_args()
    random.seed(args.seed)
    torch.manual_seed(args.seed)

    make_loader = partial(
        DataLoader, Molecules(prepare(args.data)), batch_size=args.batch, shuffle=True, drop_last=True
    )
    loader = make_loader(collate_fn=batch_arrays if args.fixed else batch_graphs)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)
    for epoch in range(args.epochs):
        begin, count, losses = time.time(), 0, []
        for x, edges, w, owner, y in loader:
            optimizer.zero_grad()
            loss = ((model(x, edges, w, owner, len(y)) - y) ** 2).mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
            count += len(y)
        print(
            f"epoch {epoch}: mse {torch.stack(losses).mean():.3f}, {count / (time.time() - begin):.1f} samples/s",
            flush=True,
        )


main()
