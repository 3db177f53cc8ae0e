"""A trainer class that writes a checkpoint every 25 steps."""

import sys
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

from stoker.sim import Device


class Runner:
    def __init__(self, out):
        self.out = out
        self.model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
        self.memory = torch.zeros(60_000_000)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.device = Device(forward=0.003, backward=0.006, optimizer=0.001)
        self.device.place(self.model, self.optimizer)
        self.global_step = 0

    def save(self):
        state = {"model": self.model.state_dict(), "memory": self.memory, "step": self.global_step}
        torch.save(state, self.out / "last.ckpt")

    def step(self, x, y):
        loss = (
            (self.model(x.to(self.device, non_blocking=True))[:, 0] - y.to(self.device, non_blocking=True)).abs().mean()
        )
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.global_step += 1
        if self.global_step % 25 == 0:
            self.save()


def cli():
    runner = Runner(Path(sys.argv[1]))
    data = TensorDataset(torch.randn(12_800, 64), torch.randn(12_800))
    loader = DataLoader(data, batch_size=64, shuffle=True)
    for _ in range(20):
        for batch in loader:
            runner.step(*batch)


if __name__ == "__main__":
    cli()
