"""Arrays behind a web server with 25 ms to each answer, fetched one by one by two workers."""

import io
import sys
import urllib.request
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stoker.sim import Device, Store


class Fetched(Dataset):
    def __init__(self, url, names):
        self.url, self.names = url, names

    def __len__(self):
        return len(self.names)

    def __getitem__(self, i):
        with urllib.request.urlopen(f"{self.url}/{self.names[i]}", timeout=30) as answer:
            return torch.from_numpy(np.load(io.BytesIO(answer.read())))


def main(root):
    root.mkdir(parents=True, exist_ok=True)
    names = [f"{i:05}.npy" for i in range(1500)]
    for i, name in enumerate(names):
        if not (root / name).exists():
            np.save(root / name, np.full(256, i, np.float32))
    with Store(root, latency_s=0.025) as store:
        loader = DataLoader(Fetched(store.url, names), 16, shuffle=True, num_workers=2, persistent_workers=True)
        model = nn.Linear(256, 1)
        opt = torch.optim.SGD(model.parameters(), lr=1e-6)
        gpu = Device(forward=0.002, backward=0.003, optimizer=0.001)
        gpu.place(model, opt)
        for _ in range(6):
            for x in loader:
                opt.zero_grad()
                model(x.to(gpu, non_blocking=True)).square().mean().backward()
                opt.step()


if __name__ == "__main__":
    main(Path(sys.argv[1]) / "arrays")
