"""A long validation every twenty-five steps, in the middle of an epoch."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def evaluate(model, loader):
    model.eval()
    right = seen = 0
    with torch.inference_mode():
        for x, y in loader:
            right += (model(x).argmax(1) == y).sum().item()
            seen += len(y)
    model.train()
    return right / seen


def main():
    torch.manual_seed(0)
    make = lambda n: TensorDataset(torch.randn(n, 128), torch.randint(0, 10, (n,)))  # noqa: E731
    train, valid = DataLoader(make(12_800), 64, shuffle=True), DataLoader(make(8_000), 64)
    model = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    step = 0
    for _ in range(6):
        for x, y in train:
            loss = nn.functional.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            if step % 25 == 0:
                print(step, evaluate(model, valid))


if __name__ == "__main__":
    main()
