"""Sleep apnea detection from 30 s SpO2 + airflow epochs. Short training epochs, evaluated after each of them."""

import argparse
import os
import tempfile
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Nights(Dataset):
    """Memory-mapped; opened in the process that uses it."""

    def __init__(self, path, lo, hi):
        self.path, self.lo, self.hi, self.x = path, lo, hi, None

    def __len__(self):
        return self.hi - self.lo

    def __getitem__(self, i):
        if self.x is None:
            self.x = np.load(self.path + "/x.npy", mmap_mode="r")
            self.y = np.load(self.path + "/y.npy")
        x = np.array(self.x[self.lo + i])
        x += np.random.normal(0, 0.02, x.shape).astype(np.float32)
        return torch.from_numpy(x), int(self.y[self.lo + i])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(
            nn.Conv1d(2, 32, 9, stride=2, padding=4),
            nn.ReLU(),
            nn.Conv1d(32, 64, 9, stride=2, padding=4),
            nn.ReLU(),
            nn.Conv1d(64, 64, 9, stride=2, padding=4),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(1),
            nn.Flatten(),
            nn.Linear(64, 2),
        )

    def forward(self, x):
        return self.f(x)


class Trainer:
    def __init__(self, folder, args):
        self.args, self.folder = args, folder
        self.model = Net()
        self.opt = torch.optim.AdamW(self.model.parameters(), 1e-3)
        self.crit = nn.CrossEntropyLoss()
        # spawn: fork does not get along with the lab's EDF reader
        self.train_loader = DataLoader(
            Nights(folder, 0, args.n),
            batch_size=32,
            shuffle=True,
            num_workers=2,
            drop_last=True,
            multiprocessing_context="spawn",
            persistent_workers=args.fixed,
        )
        self.val_loader = DataLoader(Nights(folder, args.n, args.n + 64), batch_size=64)

    def train_epoch(self):
        total = 0.0
        for x, y in self.train_loader:
            loss = self.crit(self.model(x), y)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            total += loss.detach()
        return float(total) / len(self.train_loader)

    @torch.no_grad()
    def validate(self):
        return np.mean([(self.model(x).argmax(1) == y).float().mean().item() for x, y in self.val_loader])

    def fit(self):
        for epoch in range(self.args.epochs):
            t = time.time()
            loss = self.train_epoch()
            t_train = time.time() - t
            acc = self.validate()
            torch.save(self.model.state_dict(), os.path.join(self.folder, "last.pt"))
            print(f"epoch {epoch:02d} | train {loss:.4f} | val acc {acc:.3f} | {t_train:.2f} s", flush=True)


def make(folder, n):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, n)
    t = np.linspace(0, 30, 960, dtype=np.float32)
    x = np.stack([np.sin(t[None] * (1.5 - 0.6 * y[:, None])), rng.normal(95 - 6 * y[:, None], 1, (n, 960)) / 100], 1)
    np.save(folder + "/x.npy", x.astype(np.float32))
    np.save(folder + "/y.npy", y)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--n", type=int, default=768)
    ap.add_argument("--epochs", type=int, default=18)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="apnea_") as folder:
        make(folder, args.n + 64)
        Trainer(folder, args).fit()
