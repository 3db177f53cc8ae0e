"""Small ResNet on a long-tailed image set with class-balanced sampling and early stopping."""

import argparse
import csv
import os
import tempfile
import time
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler


@dataclass
class Config:
    train_images: int = 3584
    val_images: int = 256
    classes: int = 10
    width: int = 24
    batch_size: int = 64
    epochs: int = 6
    patience: int = 10
    lr: float = 0.05
    seed: int = 29


def make_images(cfg):
    g = torch.Generator().manual_seed(cfg.seed)
    freq = 0.7 ** torch.arange(cfg.classes, dtype=torch.float)
    y_train = torch.multinomial(freq, cfg.train_images, replacement=True, generator=g)
    y_val = torch.randint(cfg.classes, (cfg.val_images,), generator=g)
    proto = torch.randn(cfg.classes, 3, 32, 32, generator=g)

    def render(y):
        return 0.3 * proto[y] + torch.randn(len(y), 3, 32, 32, generator=g)

    return TensorDataset(render(y_train), y_train), TensorDataset(render(y_val), y_val)


class Block(nn.Module):
    def __init__(self, cin, cout, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(cout)
        self.skip = nn.Identity() if cin == cout and stride == 1 else nn.Conv2d(cin, cout, 1, stride, bias=False)

    def forward(self, x):
        h = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(h)) + self.skip(x))


class ResNet(nn.Module):
    def __init__(self, width, classes):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.layers = nn.Sequential(Block(width, width), Block(width, 2 * width, 2), Block(2 * width, 2 * width))
        self.fc = nn.Linear(2 * width, classes)

    def forward(self, x):
        return self.fc(self.layers(self.stem(x)).mean((2, 3)))


@torch.no_grad()
def evaluate(model, loader, classes):
    model.eval()
    hits, seen = torch.zeros(classes), torch.zeros(classes)
    for x, y in loader:
        pred = model(x).argmax(1)
        hits += torch.bincount(y[pred == y], minlength=classes)
        seen += torch.bincount(y, minlength=classes)
    model.train()
    return (hits / seen.clamp_min(1)).mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fixed", action="store_true")
    parser.parse_args()
    cfg = Config()
    torch.manual_seed(cfg.seed)
    train_set, val_set = make_images(cfg)
    labels = train_set.tensors[1]
    weights = 1.0 / torch.bincount(labels, minlength=cfg.classes).clamp_min(1)[labels].float()
    sampler = WeightedRandomSampler(weights, num_samples=len(train_set), replacement=True)
    train_loader = DataLoader(train_set, batch_size=cfg.batch_size, sampler=sampler, num_workers=0)
    val_loader = DataLoader(val_set, batch_size=128)

    model = ResNet(cfg.width, cfg.classes)
    optimizer = torch.optim.SGD(model.parameters(), lr=cfg.lr, momentum=0.9, nesterov=True, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, cfg.lr, total_steps=cfg.epochs * len(train_loader))

    best, bad_epochs, steps = 0.0, 0, 0
    with tempfile.TemporaryDirectory() as out, open(os.path.join(out, "log.csv"), "w", newline="") as f:
        writer = csv.writer(f)
        start = time.time()
        for epoch in range(cfg.epochs):
            correct = total = 0
            for i, (x, y) in enumerate(train_loader):
                flip = torch.rand(len(x)) < 0.5
                x[flip] = x[flip].flip(-1)
                logits = model(x)
                loss = F.cross_entropy(logits, y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                scheduler.step()
                steps += 1
                correct += (logits.argmax(1) == y).sum().item()
                total += len(y)
                writer.writerow([epoch, steps, loss.item(), correct / total])
                f.flush()
                if (i + 1) % 10 == 0:
                    print(f"\repoch {epoch} {i + 1}/{len(train_loader)} loss {loss.item():.4f}", end="", flush=True)
            acc = evaluate(model, val_loader, cfg.classes)
            print(f"\repoch {epoch}: train acc {correct / total:.3f} balanced val acc {acc:.3f}", flush=True)
            if acc > best:
                best, bad_epochs = acc, 0
                torch.save(model.state_dict(), os.path.join(out, "best.pt"))
            else:
                bad_epochs += 1
                if bad_epochs >= cfg.patience:
                    print("early stop")
                    break
        print(f"{steps} steps in {time.time() - start:.1f} s")


if __name__ == "__main__":
    main()
