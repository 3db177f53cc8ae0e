"""A sound script: tensors in memory, whole batches by index, a model that takes its time, logs every hundred steps."""

import torch
from torch import nn


def batches(x, y, size, generator):
    order = torch.randperm(len(x), generator=generator)
    for part in order.split(size):
        yield x[part], y[part]


def main():
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(6000, 1, 28, 28, generator=generator), torch.randint(0, 10, (6000,), generator=generator)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 14 * 14, 10),
    )
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step = 0
    for _ in range(8):
        for bx, by in batches(x, y, 64, generator):
            loss = nn.functional.cross_entropy(model(bx), by)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            step += 1
            if step % 100 == 0:
                print(step, loss.item())


main()
