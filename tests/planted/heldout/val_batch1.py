"""Validation one sample at a time, over a set as large as the training set."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def run():
    torch.set_num_threads(1)
    g = torch.Generator().manual_seed(3)
    tr = TensorDataset(torch.randn(6000, 64, generator=g), torch.randint(0, 5, (6000,), generator=g))
    va = TensorDataset(torch.randn(6000, 64, generator=g), torch.randint(0, 5, (6000,), generator=g))
    train, val = DataLoader(tr, 32, shuffle=True), DataLoader(va, 1)
    net = nn.Sequential(nn.Linear(64, 600), nn.ReLU(), nn.Linear(600, 600), nn.ReLU(), nn.Linear(600, 5))
    opt = torch.optim.SGD(net.parameters(), 0.05)
    for epoch in range(30):
        net.train()
        for x, y in train:
            opt.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            opt.step()
        net.eval()
        hit = 0
        with torch.inference_mode():
            for x, y in val:
                hit += int((net(x).argmax(1) == y).item())
        print(epoch, hit / len(va))


run()
