"""A running mean of the loss, read back from the device after every step."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stoker.sim import Device


class Mean:
    def __init__(self):
        self.value = 0.0

    def add(self, loss):
        self.value = 0.9 * self.value + 0.1 * float(loss)


def main():
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(8192, 32), torch.randint(0, 4, (8192,)))
    loader = DataLoader(data, 64, shuffle=True, num_workers=2, persistent_workers=True)
    layers = [part for _ in range(12) for part in (nn.Linear(32, 32), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(32, 4))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    device = Device(forward=0.004, backward=0.004, optimizer=0.001)
    device.place(model, opt)
    mean = Mean()
    for _ in range(15):
        for x, y in loader:
            x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            loss = nn.functional.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            mean.add(loss)
    print(mean.value)


if __name__ == "__main__":
    main()
