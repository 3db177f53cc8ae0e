"""Annotations as JSON strings that are parsed and rasterised anew each epoch, the same each time."""

import json

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Boxes(Dataset):
    def __init__(self, n=800):
        r = np.random.default_rng(0)
        self.raw = [json.dumps([{"box": r.random(4).tolist(), "label": int(k)} for k in range(150)]) for _ in range(n)]

    def __len__(self):
        return len(self.raw)

    def __getitem__(self, i):
        grid = np.zeros((8, 24, 24), np.float32)
        for one in json.loads(self.raw[i]):
            x0, y0, x1, y1 = (int(v * 24) for v in one["box"])
            for x in range(min(x0, x1), max(x0, x1)):
                grid[one["label"] % 8, min(y0, y1) : max(y0, y1), x] += 1
        return torch.from_numpy(grid), i % 5


if __name__ == "__main__":
    net = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(8 * 24 * 24, 32), torch.nn.ReLU(), torch.nn.Linear(32, 5)
    )
    opt = torch.optim.Adam(net.parameters())
    dl = DataLoader(Boxes(), 32, shuffle=True, num_workers=2, persistent_workers=True)
    for ep in range(60):
        for x, y in dl:
            opt.zero_grad()
            loss = torch.nn.functional.cross_entropy(net(x), y)
            loss.backward()
            opt.step()
