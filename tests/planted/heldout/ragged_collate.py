"""Graphs as lists of edges; the collate function copies them into padded matrices, number by number."""

import torch
from torch import nn
from torch.utils.data import DataLoader

from stoker.sim import Device


def graphs(n):
    g = torch.Generator().manual_seed(0)
    sizes = torch.randint(20, 60, (n,), generator=g).tolist()
    return [[(a % size, (a * 7 + 3) % size) for a in range(3 * size)] for size in sizes]


def merge(batch):
    out = torch.zeros(len(batch), 64, 64)
    for row, edges in enumerate(batch):
        for a, b in edges:
            out[row, a, b] = 1.0
            out[row, b, a] = 1.0
    return out


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(64, 16)

    def forward(self, adjacency):
        return self.mix(adjacency).mean(dim=(1, 2))


def train():
    data = graphs(3000)
    batches = DataLoader(data, 16, shuffle=True, num_workers=2, persistent_workers=True, collate_fn=merge)
    net = Net()
    adam = torch.optim.Adam(net.parameters())
    gpu = Device(forward=0.001, backward=0.002, optimizer=0.0005)
    gpu.place(net, adam)
    for _ in range(10):
        for adjacency in batches:
            adam.zero_grad()
            net(adjacency.to(gpu, non_blocking=True)).square().mean().backward()
            adam.step()


if __name__ == "__main__":
    train()
