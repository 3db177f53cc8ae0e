"""Images in memory, bent and blurred by numpy in two workers, other ones each time; the device is far faster."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, get_worker_info

from stoker.sim import Device


class Bent(Dataset):
    def __init__(self):
        self.images = np.random.default_rng(0).integers(0, 255, (4000, 96, 96, 3), dtype=np.uint8)
        self.rng = None

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        if self.rng is None:
            info = get_worker_info()
            self.rng = np.random.default_rng(info.seed if info else 0)
        image = self.images[i].astype(np.float32) / 255
        shift = self.rng.normal(0, 2, (2, 96, 96))
        for _ in range(4):  # smooth the field
            shift = (shift + np.roll(shift, 1, 1) + np.roll(shift, -1, 1) + np.roll(shift, 1, 2)) / 4
        y, x = np.mgrid[0:96, 0:96]
        y = np.clip(y + shift[0], 0, 95).astype(int)
        x = np.clip(x + shift[1], 0, 95).astype(int)
        image = image[y, x]
        noise = self.rng.normal(0, 0.05, image.shape).astype(np.float32)
        return torch.from_numpy((image + noise).transpose(2, 0, 1).copy()), i % 10


def main():
    loader = DataLoader(Bent(), 32, shuffle=True, num_workers=2, persistent_workers=True, drop_last=True)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 96 * 96, 10))
    opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    device = Device(forward=0.004, backward=0.008, optimizer=0.001)
    device.place(model, opt)
    for _ in range(10):
        for x, y in loader:
            x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            loss = nn.functional.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()


if __name__ == "__main__":
    main()
