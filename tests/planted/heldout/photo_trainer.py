"""Image classifier with gradient accumulation and loss scaling."""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stoker import sim


class Photos(Dataset):
    def __init__(self, n, seed, augment):
        rng = np.random.default_rng(seed)
        self.pixels = rng.integers(0, 256, (n, 3, 32, 32), dtype=np.uint8)
        self.labels = rng.integers(0, 10, n)
        self.augment = augment

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        x = torch.from_numpy(self.pixels[i])
        if self.augment and torch.rand(()) < 0.5:
            x = x.flip(-1)
        return x, self.labels[i]


class Scaler:
    def __init__(self, scale=1024.0, every=200):
        self.scale, self.good, self.every = scale, 0, every

    def step(self, optimizer):
        grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        for grad in grads:
            grad.div_(self.scale)
        optimizer.step()
        self.good += 1
        if self.good % self.every == 0:
            self.scale = min(self.scale * 2, 65536.0)


class Trainer:
    def __init__(self, folder, accumulate=2, batch_size=64, log_every=50):
        self.folder, self.accumulate, self.log_every = folder, accumulate, log_every
        options = {"batch_size": batch_size, "num_workers": 1, "persistent_workers": True, "prefetch_factor": 4}
        self.train_loader = DataLoader(Photos(6400, 0, True), shuffle=True, drop_last=True, **options)
        self.val_loader = DataLoader(Photos(320, 1, False), **options)
        net = nn.Sequential(
            nn.Conv2d(3, 6, 4, stride=4),
            nn.ReLU(),
            nn.Conv2d(6, 12, 2, stride=2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(192, 10),
        )
        self.optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
        self.device = sim.Device(forward=sim.linear(2e-3, 2.5e-4), backward=sim.linear(2e-3, 4.5e-4), optimizer=5e-3)
        self.net = self.device.place(net, self.optimizer)
        self.criterion = nn.CrossEntropyLoss()
        self.scaler = Scaler()

    def move(self, batch):
        x, y = batch
        return x.to(self.device, non_blocking=True).float().div(255), y.to(self.device, non_blocking=True)

    def train_epoch(self, epoch):
        self.net.train()
        for i, batch in enumerate(self.train_loader, 1):
            x, y = self.move(batch)
            loss = self.criterion(self.net(x), y) / self.accumulate
            (loss * self.scaler.scale).backward()
            if i % self.accumulate == 0:
                self.scaler.step(self.optimizer)
                self.optimizer.zero_grad()
            if i % self.log_every == 0:
                print(f"  {epoch}:{i} loss {loss.item() * self.accumulate:.3f}", flush=True)

    @torch.no_grad()
    def validate(self):
        self.net.eval()
        right = [(self.net(x).argmax(1) == y).float().mean() for x, y in map(self.move, self.val_loader)]
        return torch.stack(right).mean().item()

    def fit(self, epochs):
        for epoch in range(epochs):
            began = time.perf_counter()
            self.train_epoch(epoch)
            accuracy = self.validate()
            torch.save(self.net.state_dict(), self.folder / "photos.pt")
            print(f"epoch {epoch}: accuracy {accuracy:.3f} ({time.perf_counter() - began:.1f} s)", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--fixed", action="store_true")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    Trainer(args.folder).fit(epochs=80)
