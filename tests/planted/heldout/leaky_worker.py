"""Every sample that was ever made is remembered, in each of the workers."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stoker.sim import Device


class Remembering(Dataset):
    def __init__(self):
        self.history = []

    def __len__(self):
        return 60_000

    def __getitem__(self, i):
        sample = np.full(2000, float(i % 7), np.float64)
        self.history.append(sample.tolist())
        return torch.from_numpy(sample.astype(np.float32))


def main():
    loader = DataLoader(Remembering(), 16, num_workers=2, persistent_workers=True)
    model = nn.Linear(2000, 1)
    opt = torch.optim.SGD(model.parameters(), lr=1e-6)
    device = Device(forward=0.010, backward=0.020, optimizer=0.002)
    device.place(model, opt)
    for x in loader:
        opt.zero_grad()
        model(x.to(device, non_blocking=True)).square().mean().backward()
        opt.step()


if __name__ == "__main__":
    main()
