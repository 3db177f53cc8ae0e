"""Few-shot episodes: epochs of a dozen batches, and new workers for each of them."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stoker.sim import Device


def episode(loader, model, opt, device):
    losses = []
    for x, y in loader:
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.detach())
    return losses


def main():
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5))
    opt = torch.optim.Adam(model.parameters())
    device = Device(forward=0.001, backward=0.002, optimizer=0.0005)
    device.place(model, opt)
    support = TensorDataset(torch.randn(400, 64), torch.randint(0, 5, (400,)))
    loader = DataLoader(support, batch_size=32, shuffle=True, num_workers=2)
    for number in range(120):
        losses = episode(loader, model, opt, device)
        if number % 40 == 39:
            print(number, torch.stack(losses).mean().item())


if __name__ == "__main__":
    main()
