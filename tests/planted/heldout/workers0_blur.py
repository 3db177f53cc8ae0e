"""Blurs each picture in Python and numpy; nobody set num_workers."""

import numpy as np
import torch

torch.set_num_threads(1)


class Blur(torch.utils.data.Dataset):
    def __init__(self):
        self.base = np.random.default_rng(1).random((200, 96, 96), dtype=np.float32)

    def __len__(self):
        return 20000

    def __getitem__(self, i):
        x = self.base[i % 200].copy() + np.float32(i % 7)
        for _ in range(6):
            x = (x + np.roll(x, 1, 0) + np.roll(x, -1, 0) + np.roll(x, 1, 1) + np.roll(x, -1, 1)) / 5
        return x[None], i % 3


class Trainer:
    def __init__(self):
        self.net = torch.nn.Sequential(
            torch.nn.Conv2d(1, 4, 5, stride=4), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.LazyLinear(3)
        )
        self.data = torch.utils.data.DataLoader(Blur(), batch_size=32, shuffle=True)
        self.net(torch.zeros(1, 1, 96, 96))
        self.opt = torch.optim.SGD(self.net.parameters(), 0.01)

    def step(self, x, y):
        self.opt.zero_grad(set_to_none=True)
        out = torch.nn.functional.cross_entropy(self.net(x), y)
        out.backward()
        self.opt.step()
        return out.detach()

    def fit(self, epochs):
        for e in range(epochs):
            total = 0.0
            for n, (x, y) in enumerate(self.data):
                total += self.step(x, y)
            print("epoch", e, float(total) / (n + 1))


Trainer().fit(5)
