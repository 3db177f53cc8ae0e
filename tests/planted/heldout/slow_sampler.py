"""A sampler that draws without replacement from a Python list, looking for what is left."""

import random

import torch
from torch.utils.data import DataLoader, Sampler, TensorDataset


class Left(Sampler):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __iter__(self):
        left = list(range(self.n))
        while left:
            pick = random.choice(left)
            left.remove(pick)
            yield pick


if __name__ == "__main__":
    ds = TensorDataset(torch.randn(60000, 16), torch.randn(60000, 1))
    net = torch.nn.Linear(16, 1)
    opt = torch.optim.SGD(net.parameters(), 0.01)
    dl = DataLoader(ds, batch_size=64, sampler=Left(len(ds)), num_workers=1)
    for e in range(3):
        for x, y in dl:
            opt.zero_grad()
            ((net(x) - y) ** 2).mean().backward()
            opt.step()
