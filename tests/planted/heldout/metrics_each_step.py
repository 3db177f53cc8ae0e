"""Running averages kept in a meter class that reads the device again and again in every step."""

import torch
from torch.utils.data import DataLoader, TensorDataset

from stoker.sim import Device


class AverageMeter:
    def __init__(self):
        self.total, self.count = 0.0, 0

    def update(self, value):
        self.total += value.item()
        self.count += 1


def prepare(batch):
    x = batch[0].numpy().copy()
    for _ in range(60):  # work of the host that could run while the device is busy
        x = x * 1.0001 + 0.0001
    return torch.from_numpy(x)


def main():
    gpu = Device(forward=0.008, backward=0.014, optimizer=0.003)
    model = torch.nn.Linear(512, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    gpu.place(model, optimizer)
    meters = {"loss": AverageMeter(), "norm": AverageMeter(), "peak": AverageMeter()}
    loader = DataLoader(TensorDataset(torch.randn(25_600, 512)), batch_size=256)
    for _ in range(40):
        for batch in loader:
            x = prepare(batch).to(gpu, non_blocking=True)
            out = model(x)
            loss = out.square().mean()
            meters["loss"].update(loss)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            meters["norm"].update(out.norm())
            meters["peak"].update(out.max())


if __name__ == "__main__":
    main()
