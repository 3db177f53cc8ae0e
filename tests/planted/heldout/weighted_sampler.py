"""Rare classes more often: a sampler that draws each index anew from all weights."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset

N = 200_000


class Balanced(Sampler):
    def __init__(self, labels):
        self.weights = 1.0 / np.bincount(labels)[labels]
        self.rng = np.random.default_rng(0)

    def __len__(self):
        return 20_000

    def __iter__(self):
        for _ in range(len(self)):
            chances = np.cumsum(self.weights)
            yield int(np.searchsorted(chances, self.rng.random() * chances[-1]))


def main():
    labels = np.random.default_rng(1).integers(0, 10, N)
    data = TensorDataset(torch.randn(N, 16), torch.from_numpy(labels))
    loader = DataLoader(data, batch_size=64, sampler=Balanced(labels))
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 10))
    opt = torch.optim.AdamW(model.parameters())
    for _ in range(5):
        for x, y in loader:
            opt.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            opt.step()


main()
