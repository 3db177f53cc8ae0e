"""Files on a mount where every open takes its time, read one after the other."""

import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from stoker.sim import Device


class Mount:
    """Stands for a file system far away: the time of an answer does not depend on its size."""

    def read(self, path):
        time.sleep(0.012)
        return path.read_bytes()


class Tiles(Dataset):
    def __init__(self, root):
        root.mkdir(exist_ok=True)
        for n in range(2000):
            path = root / f"{n}.bin"
            if not path.exists():
                path.write_bytes(np.random.default_rng(n).bytes(3072))
        self.root, self.mount = root, Mount()

    def __len__(self):
        return 2000

    def __getitem__(self, n):
        data = self.mount.read(self.root / f"{n}.bin")
        return torch.frombuffer(bytearray(data), dtype=torch.uint8).float().div(255)


if __name__ == "__main__":
    tiles = Tiles(Path(sys.argv[1]) / "tiles")
    loader = DataLoader(tiles, batch_size=16, shuffle=True, num_workers=2, prefetch_factor=3, persistent_workers=True)
    model = torch.nn.Linear(3072, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    device = Device(forward=0.006, backward=0.010, optimizer=0.002)
    device.place(model, optimizer)
    for epoch in range(8):
        for batch in loader:
            optimizer.zero_grad()
            model(batch.to(device, non_blocking=True)).mean().backward()
            optimizer.step()
