"""Heavy numpy augmentation in two workers that already fill both cores."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader


class Aug:
    def __init__(self, n):
        self.n = n
        self.pics = np.random.default_rng(5).integers(0, 255, (100, 64, 64, 3), dtype=np.uint8)

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        rng = np.random.default_rng()
        x = self.pics[i % 100].astype(np.float64)
        noise = rng.normal(size=(4, *x.shape)).mean(0)
        freq = np.fft.ifft2(np.fft.fft2(x, axes=(0, 1)) * rng.random((64, 64, 1)), axes=(0, 1)).real
        order = np.argsort(rng.random(64))
        return torch.tensor(np.ascontiguousarray((freq + noise)[order].transpose(2, 0, 1)), dtype=torch.float32), i % 4


def train():
    torch.set_num_threads(1)
    dl = DataLoader(Aug(50000), 48, num_workers=2, shuffle=True, persistent_workers=True, drop_last=True)
    net = nn.Sequential(nn.Conv2d(3, 8, 3, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 4))
    opt = torch.optim.SGD(net.parameters(), 0.1)
    for ep in range(3):
        for k, (x, y) in enumerate(dl):
            loss = nn.functional.cross_entropy(net(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            if k % 200 == 0:
                print(ep, k, loss.item())


if __name__ == "__main__":
    train()
