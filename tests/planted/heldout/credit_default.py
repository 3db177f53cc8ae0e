# Default probability on loan tables. Everything fits in memory: batches are rows gathered from two tensors.
import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler


class Loans(Dataset):
    """Indexed by a whole batch of row numbers."""

    def __init__(self, n, d=64):
        g = torch.Generator().manual_seed(0)
        self.x = torch.randn(n, d, generator=g)
        self.y = (self.x[:, 0] * self.x[:, 1] + self.x[:, 2] > 0.3).float()

    def __len__(self):
        return len(self.y)

    def __getitem__(self, rows):
        return self.x[rows], self.y[rows]


class RowBatches(Sampler):
    def __init__(self, n, batch):
        self.n, self.batch = n, batch

    def __len__(self):
        return self.n // self.batch

    def __iter__(self):
        return iter(torch.randperm(self.n)[: len(self) * self.batch].split(self.batch))


parser = argparse.ArgumentParser()
parser.add_argument("--rows", type=int, default=512_000)
parser.add_argument("--batch", type=int, default=1024)
parser.add_argument("--epochs", type=int, default=20)
args = parser.parse_args()

torch.manual_seed(0)
data = Loans(args.rows)
loader = DataLoader(data, sampler=RowBatches(args.rows, args.batch), batch_size=None)
model = nn.Sequential(nn.Linear(64, 384), nn.ReLU(), nn.Linear(384, 384), nn.ReLU(), nn.Linear(384, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
lossf = nn.BCEWithLogitsLoss()

for epoch in range(args.epochs):
    t0, total = time.perf_counter(), torch.zeros(())
    for x, y in loader:
        loss = lossf(model(x).squeeze(1), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.detach()
    dt = time.perf_counter() - t0
    print(f"epoch {epoch}  loss {total.item() / len(loader):.4f}  {dt / len(loader) * 1e3:.2f} ms/step", flush=True)
