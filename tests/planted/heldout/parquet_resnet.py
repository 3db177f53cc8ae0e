"""Residual MLP/CNN on sensor frames stored in parquet, with an EMA copy, cosine schedule and validation per epoch."""

import argparse
import copy
import logging
import os
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
log = logging.getLogger("train")
CH, T, CLASSES = 8, 128, 5


def make_parquet(folder, n=800):
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "frames.parquet")
    if not os.path.exists(path):
        rng = np.random.default_rng(31)
        y = rng.integers(0, CLASSES, n)
        x = rng.normal(size=(n, CH, T)) + np.sin(np.arange(T) * (y[:, None, None] + 1) / 8)
        flat = pa.FixedSizeListArray.from_arrays(pa.array(x.astype(np.float32).ravel()), CH * T)
        pq.write_table(pa.table({"x": flat, "y": y}), path, row_group_size=200)
    table = pq.read_table(path).combine_chunks()
    x = table["x"].chunk(0).flatten().to_numpy().reshape(-1, CH, T)
    return torch.from_numpy(x.copy()), torch.from_numpy(table["y"].to_numpy().copy())


class Res(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.f = nn.Sequential(
            nn.BatchNorm1d(c),
            nn.ReLU(),
            nn.Conv1d(c, c, 5, padding=2),
            nn.BatchNorm1d(c),
            nn.ReLU(),
            nn.Conv1d(c, c, 5, padding=2),
        )

    def forward(self, x):
        return x + self.f(x)


class Trainer:
    def __init__(self, args):
        self.args = args
        x, y = make_parquet(args.data)
        self.train_loader = DataLoader(TensorDataset(x[32:], y[32:]), batch_size=32, shuffle=True)
        self.val_loader = DataLoader(TensorDataset(x[:32], y[:32]), batch_size=32)
        c = 96
        self.model = nn.Sequential(
            nn.Conv1d(CH, c, 7, padding=3),
            Res(c),
            Res(c),
            Res(c),
            nn.AdaptiveAvgPool1d(1),
            nn.Flatten(),
            nn.Linear(c, CLASSES),
        )
        self.ema = copy.deepcopy(self.model).requires_grad_(False)
        self.opt = torch.optim.SGD(self.model.parameters(), 0.02, momentum=0.9)
        self.sched = torch.optim.lr_scheduler.CosineAnnealingLR(self.opt, args.epochs)
        self.step = 0

    @torch.no_grad()
    def update_ema(self, decay=0.99):
        torch._foreach_lerp_(list(self.ema.parameters()), list(self.model.parameters()), 1 - decay)

    def train_epoch(self):
        self.model.train()
        for x, y in self.train_loader:
            self.opt.zero_grad()
            loss = nn.functional.cross_entropy(self.model(x), y, label_smoothing=0.1)
            loss.backward()
            self.opt.step()
            self.update_ema()
            self.step += 1
            if self.step % 25 == 0:
                log.info("step %d loss %.4f lr %.5f", self.step, loss.item(), self.opt.param_groups[0]["lr"])
        self.sched.step()

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        return sum((self.model(x).argmax(1) == y).sum().item() for x, y in self.val_loader) / len(
            self.val_loader.dataset
        )

    def fit(self):
        for epoch in range(self.args.epochs):
            t = time.time()
            self.train_epoch()
            rate = len(self.train_loader.dataset) / (time.time() - t)
            print(f"epoch {epoch} val acc {self.validate():.3f} {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("data")
    ap.add_argument("--epochs", type=int, default=300)
    ap.add_argument("--fixed", action="store_true")
    Trainer(ap.parse_args()).fit()
