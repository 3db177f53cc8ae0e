import argparse
import os
import tempfile
import time

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser(description="seabird species from 48x48 thumbnails")
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--images", type=int, default=3000)
parser.add_argument("--batch-size", type=int, default=24)
parser.add_argument("--lr", type=float, default=0.05)
parser.add_argument("--max-iters", type=int, default=0)
parser.add_argument("--fixed", action="store_true")


class Res(nn.Module):
    def __init__(self, c_in, c, stride=1):
        super().__init__()
        self.f = nn.Sequential(
            nn.Conv2d(c_in, c, 3, stride, 1, bias=False),
            nn.BatchNorm2d(c),
            nn.ReLU(True),
            nn.Conv2d(c, c, 3, 1, 1, bias=False),
            nn.BatchNorm2d(c),
        )
        self.s = nn.Identity() if c_in == c and stride == 1 else nn.Conv2d(c_in, c, 1, stride, bias=False)

    def forward(self, x):
        return torch.relu(self.f(x) + self.s(x))


def net(species):
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, 1, 1),
        Res(32, 32),
        Res(32, 64, 2),
        Res(64, 96, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(96, species),
    )


def birds(n, species, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, species, (n,), generator=g)
    x = torch.randint(0, 160, (n, 3, 48, 48), dtype=torch.uint8, generator=g)
    x[torch.arange(n), y % 3, (y * 2)] = 255
    return TensorDataset(x, y)


def normalise(x, train):
    x = x.float() / 255 - 0.4
    if train and torch.rand(()) < 0.5:
        x = x.flip(3)
    return x


def main():
    args = parser.parse_args()
    torch.manual_seed(0)
    train = DataLoader(birds(args.images, 20, 0), args.batch_size, shuffle=True, drop_last=True)
    val = DataLoader(birds(160, 20, 1), 80)
    model = net(20)
    opt = optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    sched = optim.lr_scheduler.CosineAnnealingLR(opt, args.epochs * len(train))
    criterion = nn.CrossEntropyLoss()
    it = 0
    with tempfile.TemporaryDirectory() as tmp:
        start = time.time()
        for epoch in range(args.epochs):
            model.train()
            for x, y in train:
                loss = criterion(model(normalise(x, True)), y)
                opt.zero_grad()
                loss.backward()
                opt.step()
                sched.step()
                it += 1
                if it % 20 == 0:
                    print(f"[{epoch}] {it} loss {loss.item():.3f} lr {sched.get_last_lr()[0]:.4f}", flush=True)
                if it == args.max_iters:
                    break
            model.eval()
            with torch.no_grad():
                right = sum((model(normalise(x, False)).argmax(1) == y).sum().item() for x, y in val)
            print(f"[{epoch}] val {right / 160:.3f}")
            torch.save({"model": model.state_dict(), "epoch": epoch}, os.path.join(tmp, "ckpt.pt"))
            if it == args.max_iters:
                break
        print(f"{it} steps in {time.time() - start:.1f} s")


if __name__ == "__main__":
    main()
