"""A table kept as a list of dicts, as csv.DictReader gives it; every sample is built field by field."""

import random

import torch
import torch.nn.functional as F  # noqa: N812
from torch.utils.data import DataLoader

FIELDS = [f"f{i}" for i in range(24)]


class Rows:
    def __init__(self, n):
        draw = random.Random(0)
        self.rows = [{**{f: draw.random() for f in FIELDS}, "target": draw.random()} for _ in range(n)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        row = self.rows[i]
        return torch.tensor([row[f] for f in FIELDS]), torch.tensor(row["target"])


torch.manual_seed(0)
loader = DataLoader(Rows(100_000), batch_size=512, shuffle=True)
w1 = torch.randn(24, 64, requires_grad=True)
w2 = torch.randn(64, 1, requires_grad=True)
opt = torch.optim.SGD([w1, w2], lr=1e-3, momentum=0.9)
for epoch in range(20):
    total = 0.0
    for x, y in loader:
        out = F.relu(x @ w1) @ w2
        loss = F.mse_loss(out[:, 0], y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print("epoch", epoch)
