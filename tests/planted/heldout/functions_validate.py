"""Plain functions train_one_epoch and evaluate; evaluation is on as much data, in batches of four."""

import torch
from torch.utils.data import DataLoader, TensorDataset

from stoker.sim import Device

device = Device(forward=0.004, backward=0.008, optimizer=0.002)


def train_one_epoch(model, loader, optimizer):
    model.train()
    for x, y in loader:
        loss = torch.nn.functional.cross_entropy(
            model(x.to(device, non_blocking=True)), y.to(device, non_blocking=True)
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    hits = torch.zeros(())
    for x, y in loader:
        guess = model(x.to(device, non_blocking=True)).argmax(1)
        hits += (guess.cpu() == y).sum()
    return float(hits) / len(loader.dataset)


def main():
    torch.manual_seed(1)
    x, y = torch.randn(6400, 20), torch.randint(0, 3, (6400,))
    train = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True)
    valid = DataLoader(TensorDataset(x[:1600], y[:1600]), batch_size=4)
    model = torch.nn.Sequential(torch.nn.Linear(20, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    device.place(model, optimizer)
    for epoch in range(40):
        train_one_epoch(model, train, optimizer)
        print(epoch, evaluate(model, valid))


if __name__ == "__main__":
    main()
