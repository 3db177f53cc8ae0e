"""Crops and mirrors each sample of the batch in the training loop, one after the other."""

import random

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)


def augment(x):
    out = []
    for one in x:
        top, left = random.randrange(5), random.randrange(5)
        piece = one[:, top : top + 28, left : left + 28]
        if random.random() < 0.5:
            piece = torch.flip(piece, [2])
        piece = piece * (0.8 + 0.4 * random.random())
        out.append((piece - piece.mean()) / (piece.std() + 1e-5))
    return torch.stack(out)


net = nn.Sequential(nn.Conv2d(3, 4, 5, 4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10))
net(torch.zeros(1, 3, 28, 28))
opt = torch.optim.SGD(net.parameters(), 0.01)
loader = DataLoader(
    TensorDataset(torch.rand(20000, 3, 32, 32), torch.randint(0, 10, (20000,))), batch_size=128, shuffle=True
)
for epoch in range(10):
    for x, y in loader:
        loss = nn.functional.cross_entropy(net(augment(x)), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(epoch, loss.item())
