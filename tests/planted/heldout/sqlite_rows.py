"""Rows of an SQLite table, one SELECT by its key for each sample."""

import sqlite3
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stoker.sim import Device

N = 60_000


def build(path):
    if path.exists():
        return
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE samples (id INTEGER PRIMARY KEY, x BLOB, y REAL)")
        rng = np.random.default_rng(0)
        db.executemany(
            "INSERT INTO samples VALUES (?, ?, ?)",
            ((i, rng.random(32, dtype=np.float32).tobytes(), float(i % 10)) for i in range(N)),
        )


class SqlSamples(Dataset):
    def __init__(self, path):
        self.path = path
        self.db = None

    def __len__(self):
        return N

    def __getitem__(self, key):
        self.db = self.db or sqlite3.connect(self.path)
        x, y = self.db.execute("SELECT x, y FROM samples WHERE id = ?", (key,)).fetchone()
        return torch.frombuffer(bytearray(x), dtype=torch.float32), y


def run(path):
    build(path)
    loader = DataLoader(SqlSamples(path), 1024, shuffle=True, num_workers=1, persistent_workers=True)
    net = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    opt = torch.optim.Adam(net.parameters())
    gpu = Device(forward=0.001, backward=0.002, optimizer=0.001)
    gpu.place(net, opt)
    for _epoch in range(40):
        for x, y in loader:
            x, y = x.to(gpu, non_blocking=True), y.float().to(gpu, non_blocking=True)
            opt.zero_grad()
            ((net(x)[:, 0] - y) ** 2).mean().backward()
            opt.step()


if __name__ == "__main__":
    run(Path(sys.argv[1]) / "samples.db")
