import argparse
import copy
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

CLASSES = 10


def grow(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, CLASSES, (n,), generator=g)
    x = torch.randint(60, 200, (n, 3, 40, 40), dtype=torch.uint8, generator=g)
    for c in range(CLASSES):
        rows = (y == c).nonzero()[:, 0]
        x[rows, c % 3, 3 * c : 3 * c + 8] = 230
    return x, y


class Block(nn.Module):
    def __init__(self, i, o, stride):
        super().__init__()
        self.a = nn.Conv2d(i, o, 3, stride, 1, bias=False)
        self.n = nn.BatchNorm2d(o)
        self.b = nn.Conv2d(o, o, 3, 1, 1, groups=4)
        self.skip = nn.Conv2d(i, o, 1, stride)

    def forward(self, x):
        return F.relu(self.b(F.relu(self.n(self.a(x)))) + self.skip(x))


class LeafNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(Block(3, 16, 2), Block(16, 32, 2), Block(32, 48, 2))
        self.fc = nn.Linear(48, CLASSES)

    def forward(self, x):
        return self.fc(self.blocks(x).mean((2, 3)))


def prep(x, flip=False):
    x = x.float().div_(127.5).sub_(1)
    return x.flip(-1) if flip else x


class Tracker:
    def __init__(self, folder):
        self.best, self.state, self.file = 0.0, None, folder / "best.pt"

    def update(self, acc, model):
        if acc > self.best:
            self.best, self.state = acc, copy.deepcopy(model.state_dict())
            torch.save(self.state, self.file)


def accuracy(model, x, y, chunk):
    model.eval()
    good = 0
    with torch.inference_mode():
        for k in range(0, len(x), chunk):
            part = x[k : k + chunk]
            p = model(prep(part)).softmax(1) + model(prep(part, flip=True)).softmax(1)
            good += int((p.argmax(1) == y[k : k + chunk]).sum())
    model.train()
    return good / len(x)


def main(a):
    torch.manual_seed(0)
    x, y = grow(4800, 1)
    vx, vy = grow(2600, 2)
    check_every = 600 if a.fixed else a.check_every
    model = LeafNet()
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    warm = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 100))
    with tempfile.TemporaryDirectory() as d:
        track = Tracker(Path(d))
        order, pos = torch.randperm(len(x)), 0
        t0 = time.perf_counter()
        for step in range(1, a.steps + 1):
            if pos + a.batch > len(order):
                order, pos = torch.randperm(len(x)), 0
            rows = order[pos : pos + a.batch]
            pos += a.batch
            loss = F.cross_entropy(model(prep(x[rows], flip=step % 2 == 0)), y[rows])
            opt.zero_grad()
            loss.backward()
            opt.step()
            warm.step()
            if step % check_every == 0:
                track.update(accuracy(model, vx, vy, 50), model)
                print(f"step {step}: best {track.best:.3f}", flush=True)
        print(f"{a.steps} steps in {time.perf_counter() - t0:.1f} s")


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=1800)
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--check-every", type=int, default=30)
    p.add_argument("--fixed", action="store_true")
    main(p.parse_args())
