"""One long recording in one file of 24 MB: read whole from the disk for every window that is cut out of it."""

import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stoker.sim import Device


class Windows(Dataset):
    def __init__(self, files):
        self.files = files

    def __len__(self):
        return 4000

    def __getitem__(self, i):
        signal = np.load(self.files[i % len(self.files)])
        start = (i * 7919) % (len(signal) - 1024)
        return torch.from_numpy(signal[start : start + 1024].copy())


def main(root):
    root.mkdir(parents=True, exist_ok=True)
    files = [root / f"{i}.npy" for i in range(4)]
    for i, path in enumerate(files):
        if not path.exists():
            np.save(path, np.random.default_rng(i).random(6_000_000, dtype=np.float32))
    loader = DataLoader(Windows(files), 8, shuffle=True, num_workers=2, persistent_workers=True)
    model = nn.Sequential(nn.Linear(1024, 64), nn.ReLU(), nn.Linear(64, 1))
    opt = torch.optim.Adam(model.parameters())
    device = Device(forward=0.002, backward=0.004, optimizer=0.001)
    device.place(model, opt)
    for _ in range(3):
        for x in loader:
            opt.zero_grad()
            model(x.to(device, non_blocking=True)).mean().backward()
            opt.step()


if __name__ == "__main__":
    main(Path(sys.argv[1]) / "recordings")
