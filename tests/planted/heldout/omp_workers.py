"""Two workers that filter with torch, each with eight threads of its own, on a machine with few cores."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stoker.sim import Device


class Filtered(Dataset):
    def __init__(self):
        self.signals = torch.randn(600, 64, 64)

    def __len__(self):
        return len(self.signals) * 4

    def __getitem__(self, i):
        x = self.signals[i % len(self.signals)]
        kernel = torch.randn(64, 64)
        for _ in range(12):
            x = torch.tanh(x @ kernel / 8 + torch.randn(64, 64))
            x = nn.functional.avg_pool2d(x[None, None].repeat(1, 8, 1, 1), 3, 1, 1)[0].mean(0)
        return x


def many_threads(_):
    torch.set_num_threads(8)


def main():
    loader = DataLoader(Filtered(), 16, True, num_workers=2, persistent_workers=True, worker_init_fn=many_threads)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4096, 1))
    opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    device = Device(forward=0.003, backward=0.005, optimizer=0.001)
    device.place(model, opt)
    for _ in range(8):
        for x in loader:
            opt.zero_grad()
            model(x.to(device, non_blocking=True)).square().mean().backward()
            opt.step()


if __name__ == "__main__":
    main()
