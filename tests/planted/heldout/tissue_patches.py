"""Tissue-type classification of 32x32 patches; keeps the weights with the best macro F1."""

import argparse
import copy
import time
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset, random_split


@dataclass
class Config:
    train_patches: int = 9_600
    val_patches: int = 10_240
    classes: int = 9
    batch_size: int = 64
    val_batch_size: int = 256
    epochs: int = 7
    eval_every: int = 25
    lr: float = 0.05
    seed: int = 13


def make_patches(cfg):
    g = torch.Generator().manual_seed(cfg.seed)
    n = cfg.train_patches + cfg.val_patches
    y = torch.randint(cfg.classes, (n,), generator=g)
    textures = torch.randn(cfg.classes, 3, 32, 32, generator=g)
    x = torch.randn(n, 3, 32, 32, generator=g)
    x.add_(textures[y], alpha=0.25)
    return TensorDataset(x, y)


class PatchNet(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1, bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 32, 3, padding=1, bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
        )
        self.head = nn.Linear(128, classes)

    def forward(self, x):
        return self.head(self.body(x).flatten(1))


def macro_f1(confusion):
    tp = confusion.diag().float()
    precision = tp / confusion.sum(0).clamp_min(1)
    recall = tp / confusion.sum(1).clamp_min(1)
    return (2 * precision * recall / (precision + recall).clamp_min(1e-8)).mean().item()


@torch.no_grad()
def evaluate(model, loader, classes):
    model.eval()
    confusion = torch.zeros(classes, classes, dtype=torch.long)
    loss = 0.0
    for x, y in loader:
        logits = model(x)
        loss += F.cross_entropy(logits, y, reduction="sum").item()
        pairs = y * classes + logits.argmax(1)
        confusion += torch.bincount(pairs, minlength=classes * classes).view(classes, classes)
    model.train()
    return loss / confusion.sum().item(), macro_f1(confusion)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fixed", action="store_true")
    args = parser.parse_args()
    cfg = Config()
    if args.fixed:
        cfg.eval_every = 350
    torch.manual_seed(cfg.seed)

    train_set, val_set = random_split(make_patches(cfg), [cfg.train_patches, cfg.val_patches])
    train_loader = DataLoader(train_set, batch_size=cfg.batch_size, shuffle=True)
    val_loader = DataLoader(val_set, batch_size=cfg.val_batch_size)

    model = PatchNet(cfg.classes)
    optimizer = torch.optim.SGD(model.parameters(), lr=cfg.lr, momentum=0.9, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=cfg.epochs * len(train_loader))

    best_f1, best_state = -1.0, None
    step, start = 0, time.time()
    for epoch in range(cfg.epochs):
        for x, y in train_loader:
            loss = F.cross_entropy(model(x), y, label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            step += 1
            if step % cfg.eval_every == 0:
                val_loss, f1 = evaluate(model, val_loader, cfg.classes)
                if f1 > best_f1:
                    best_f1, best_state = f1, copy.deepcopy(model.state_dict())
                print(
                    f"step {step} epoch {epoch} train {loss.item():.4f} val {val_loss:.4f} macro-F1 {f1:.3f}",
                    flush=True,
                )
    if best_state is not None:
        model.load_state_dict(best_state)
    print(f"best macro-F1 {best_f1:.3f}")
    print(f"{step} steps in {time.time() - start:.1f} s")


if __name__ == "__main__":
    main()
