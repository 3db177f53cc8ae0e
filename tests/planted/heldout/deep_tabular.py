"""A very deep, very narrow residual network for credit scoring (tabular)."""

import argparse
import math
import time

import torch
from torch import nn

from stoker import sim


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        centred = x - x.mean(-1, keepdim=True)
        variance = (centred * centred).mean(-1, keepdim=True)
        return centred / torch.sqrt(variance + 1e-5) * self.weight + self.bias


class Gelu(nn.Module):
    def forward(self, x):
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
        return 0.5 * x * (1 + torch.tanh(inner))


class Block(nn.Module):
    def __init__(self, width, norm, act):
        super().__init__()
        self.norm1, self.norm2 = norm(width), norm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.act = act()
        self.scale = nn.Parameter(torch.tensor(0.1))

    def forward(self, x):
        h = self.down(self.act(self.up(self.norm1(x))))
        return x + self.scale * self.norm2(h)


class Scorer(nn.Module):
    def __init__(self, columns, width, depth, norm, act):
        super().__init__()
        self.stem = nn.Linear(columns, width)
        self.blocks = nn.Sequential(*[Block(width, norm, act) for _ in range(depth)])
        self.head = nn.Linear(width, 2)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)))


def get_args():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("data", nargs="?", default=None, help="not needed: the table is drawn at random")
    ap.add_argument("--depth", type=int, default=64)
    ap.add_argument("--width", type=int, default=8)
    ap.add_argument("--batch-size", type=int, default=32)
    ap.add_argument("--epochs", type=int, default=1000)
    ap.add_argument("--fixed", action="store_true")
    return ap.parse_args()


def main():
    args = get_args()
    torch.manual_seed(0)
    table = torch.randn(3200, 30)
    target = (table[:, :5].sum(1) > 0).long()

    if args.fixed:
        model = Scorer(30, args.width, args.depth, nn.LayerNorm, nn.GELU)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    else:
        model = Scorer(30, args.width, args.depth, Norm, Gelu)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)

    device = sim.Device(forward=30e-6, backward=50e-6, optimizer=400e-6)
    for block in model.blocks:
        device.place(block, forward=260e-6, backward=420e-6)
    device.place(model.head, optimizer)
    criterion = nn.CrossEntropyLoss()

    table, target = table.to(device), target.to(device)  # it is small: keep all of it there
    for epoch in range(args.epochs):
        began = time.perf_counter()
        order = torch.randperm(len(table)).to(device)
        for step, rows in enumerate(order.split(args.batch_size)):
            logits = model(table[rows])
            loss = criterion(logits, target[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 50 == 0:
                print(f"{epoch:4d} {step:4d} loss {loss.item():.4f}", flush=True)
        print(f"{epoch:4d} done in {time.perf_counter() - began:.2f} s", flush=True)


if __name__ == "__main__":
    main()
