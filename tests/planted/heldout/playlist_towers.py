"""Two-tower playlist continuation: in-batch softmax, no listener twice in one batch (else false negatives)."""

import random
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

WHERE = Path("data_playlist_towers")
LISTENERS, TRACKS, PLAYS, BATCH = 6000, 8000, 40_000, 128


def plays():
    f = WHERE / "plays.npy"
    if not f.exists():
        WHERE.mkdir(exist_ok=True)
        r = np.random.default_rng(8)
        np.save(f, np.stack([r.integers(0, LISTENERS, PLAYS), r.integers(0, TRACKS, PLAYS)], 1))
    return np.load(f)


class Plays(Dataset):
    def __init__(self, table):
        self.pairs = [tuple(row) for row in table.tolist()]

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, i):
        return self.pairs[i]


class DistinctListeners(Sampler):
    def __init__(self, owners, size, seed=0):
        self.owners, self.size, self.rng = owners, size, random.Random(seed)

    def __len__(self):
        return len(self.owners) // self.size

    def __iter__(self):
        open_plays = list(range(len(self.owners)))
        self.rng.shuffle(open_plays)
        for _ in range(len(self)):
            chosen, listeners, misses = [], set(), 0
            while len(chosen) < self.size:
                play = self.rng.choice(open_plays)
                if self.owners[play] in listeners and misses < 200:
                    misses += 1
                    continue
                listeners.add(self.owners[play])
                chosen.append(play)
                open_plays.remove(play)
            yield chosen


class Tower(nn.Module):
    def __init__(self, count, width=32):
        super().__init__()
        self.table = nn.Embedding(count, width, sparse=True)
        self.mlp = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, width))

    def forward(self, ids):
        return nn.functional.normalize(self.mlp(self.table(ids)), dim=1)


def fit(epochs=3):
    torch.manual_seed(0)
    table = plays()
    data = Plays(table)
    loader = DataLoader(data, batch_sampler=DistinctListeners(table[:, 0].tolist(), BATCH))
    left, right = Tower(LISTENERS), Tower(TRACKS)
    tables = [left.table.weight, right.table.weight]
    rest = list(left.mlp.parameters()) + list(right.mlp.parameters())
    opts = [torch.optim.SGD(tables, lr=0.5), torch.optim.Adam(rest, lr=1e-3)]
    targets = torch.arange(BATCH)
    for epoch in range(epochs):
        tick = time.perf_counter()
        total = torch.zeros(())
        for listener, track in loader:
            logits = left(listener) @ right(track).T / 0.07
            loss = nn.functional.cross_entropy(logits, targets)
            for o in opts:
                o.zero_grad()
            loss.backward()
            for o in opts:
                o.step()
            total += loss.detach()
        print(f"epoch {epoch}: nce {total.item() / len(loader):.4f}")
        print(f"epoch_seconds {time.perf_counter() - tick:.3f}", flush=True)


if __name__ == "__main__":
    fit()
