"""A list of a million names, given to spawned workers: minutes before the first batch on a real one."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Named(Dataset):
    def __init__(self, n):
        self.names = [(f"clip-{i:08}.wav", {"start": i, "stop": i + 1}) for i in range(n)]
        self.values = torch.randn(1000, 32)

    def __len__(self):
        return 4000

    def __getitem__(self, i):
        name, cut = self.names[i]
        return self.values[cut["start"] % 1000], float(len(name))


def main():
    loader = DataLoader(Named(1_500_000), 64, num_workers=2, multiprocessing_context="spawn", persistent_workers=True)
    model = nn.Linear(32, 1)
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(3):
        for x, y in loader:
            opt.zero_grad()
            (model(x)[:, 0] - y.float()).square().mean().backward()
            opt.step()


if __name__ == "__main__":
    main()
