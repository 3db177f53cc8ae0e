"""Samples of two hundred small tensors each, from two workers: making them is nothing, handing them over is all."""

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from stoker.sim import Device

NAMES = [f"sensor_{i}" for i in range(200)]


class Sensors(IterableDataset):
    """Whole batches already, so that collating is nothing either."""

    def __init__(self):
        self.ready = {name: torch.randn(32, 40) for name in NAMES}

    def __iter__(self):
        info = get_worker_info()
        for _ in range(400 // (info.num_workers if info else 1)):
            yield {name: tensor.clone() for name, tensor in self.ready.items()}


def main():
    loader = DataLoader(Sensors(), batch_size=None, num_workers=2, persistent_workers=True)
    model = nn.Linear(40, 1)
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    device = Device(forward=0.001, backward=0.002, optimizer=0.0005)
    device.place(model, opt)
    for _ in range(10):
        for batch in loader:
            opt.zero_grad()
            model(batch["sensor_0"].to(device, non_blocking=True)).square().mean().backward()
            opt.step()


if __name__ == "__main__":
    main()
