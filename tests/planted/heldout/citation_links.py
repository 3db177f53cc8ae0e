"""Link prediction in a citation graph. The papers stay in memory as objects for the error reports."""

import gc
import random
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

DATA = Path("data_citation_links")
PAPERS, CITATIONS, WIDTH = 100_000, 400_000, 48


class Paper:
    def __init__(self, number, year):
        self.number, self.year = number, year
        self.cites, self.cited_by = [], []
        self.meta = {"venue": number % 37, "authors": [number % 5003, number % 4001]}


def load():
    f = DATA / "edges.npy"
    if not f.exists():
        DATA.mkdir(exist_ok=True)
        np.save(f, np.random.default_rng(0).integers(0, PAPERS, (CITATIONS, 2)))
    edges = np.load(f)
    r = random.Random(0)
    papers = [Paper(i, r.randint(1950, 2025)) for i in range(PAPERS)]
    for a, b in edges[:120_000].tolist():
        papers[a].cites.append(papers[b])
        papers[b].cited_by.append(papers[a])
    return papers, torch.from_numpy(edges)


class Scratch:
    """Everything made inside one step is gone after it (the notebook kernel used to run out of memory)."""

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        gc.collect()
        return False


class LinkModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.nodes = nn.Embedding(PAPERS, WIDTH, sparse=True)
        self.score = nn.Sequential(nn.Linear(3 * WIDTH, 128), nn.ReLU(), nn.Linear(128, 1))

    def forward(self, a, b):
        u, v = self.nodes(a), self.nodes(b)
        return self.score(torch.cat([u, v, u * v], 1)).squeeze(1)


def report(papers, edges, model):
    with torch.no_grad():
        p = model(edges[:200, 0], edges[:200, 1])
    worst = papers[int(edges[int(p.argmin()), 0])]
    return f"hardest: #{worst.number} ({worst.year}), {len(worst.cites)} references, venue {worst.meta['venue']}"


def main():
    torch.manual_seed(0)
    papers, edges = load()
    model = LinkModel()
    sparse = torch.optim.SGD(model.nodes.parameters(), lr=0.5)
    dense = torch.optim.Adam(model.score.parameters(), lr=1e-3)
    per_epoch, batch = 64, 1500
    for epoch in range(3):
        t0 = time.perf_counter()
        order = torch.randperm(len(edges))[: per_epoch * batch].split(batch)
        for ids in order:
            with Scratch():
                pos = edges[ids]
                a = torch.cat([pos[:, 0], pos[:, 0]])
                b = torch.cat([pos[:, 1], torch.randint(0, PAPERS, (batch,))])
                y = torch.cat([torch.ones(batch), torch.zeros(batch)])
                loss = nn.functional.binary_cross_entropy_with_logits(model(a, b), y)
                sparse.zero_grad()
                dense.zero_grad()
                loss.backward()
                sparse.step()
                dense.step()
        print(f"epoch {epoch} bce {loss.item():.4f}  {report(papers, edges, model)}")
        print(f"epoch_seconds {time.perf_counter() - t0:.3f}", flush=True)


if __name__ == "__main__":
    main()
