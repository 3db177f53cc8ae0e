"""A convolution that keeps a core busy; tensors in memory; two workers."""

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset


def main():
    torch.set_num_threads(1)
    ds = TensorDataset(torch.randn(4000, 3, 32, 32), torch.randint(0, 10, (4000,)))
    dl = DataLoader(ds, batch_size=64, shuffle=True, num_workers=1, persistent_workers=True)
    net = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )
    opt = optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for ep in range(20):
        for x, y in dl:
            opt.zero_grad()
            loss = nn.functional.cross_entropy(net(x), y)
            loss.backward()
            opt.step()
        print(ep, loss.item())


if __name__ == "__main__":
    main()
