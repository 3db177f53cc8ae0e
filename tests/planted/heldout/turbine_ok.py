"""Bearing-fault detection on wind turbine vibration windows kept in SQLite."""

import os
import sqlite3
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

DB = "data_turbine/windows.db"
CH, LEN = 6, 512


def create_db():
    if os.path.exists(DB):
        return
    os.makedirs("data_turbine", exist_ok=True)
    rng = np.random.default_rng(21)
    t = np.arange(LEN) / LEN
    con = sqlite3.connect(DB + ".tmp")
    con.execute("create table win (id integer primary key, turbine text, fault int, data blob)")
    rows = []
    for i in range(1760):
        y = int(rng.integers(4))
        sig = np.sin(2 * np.pi * (9 + 11 * y) * t)[None] + rng.normal(0, 1.0, (CH, LEN))
        rows.append((i, f"WT{i % 40:02d}", y, sig.astype(np.float16).tobytes()))
    con.executemany("insert into win values (?,?,?,?)", rows)
    con.commit()
    con.close()
    os.rename(DB + ".tmp", DB)


class Windows(Dataset):
    def __init__(self, path):
        self.path = path
        self.con = None
        with sqlite3.connect(path) as con:
            self.n = con.execute("select count(*) from win").fetchone()[0]

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        if self.con is None:
            self.con = sqlite3.connect(self.path)
        y, blob = self.con.execute("select fault, data from win where id=?", (int(i),)).fetchone()
        x = np.frombuffer(blob, np.float16).reshape(CH, LEN).astype(np.float32)
        return torch.from_numpy(np.roll(x, np.random.randint(LEN), axis=1)), y


class ResTCN(nn.Module):
    def __init__(self, w=80):
        super().__init__()
        self.stem = nn.Conv1d(CH, w, 7, 2, 3)
        self.body = nn.ModuleList(
            nn.Sequential(nn.BatchNorm1d(w), nn.ReLU(), nn.Conv1d(w, w, 3, padding=d, dilation=d))
            for d in (1, 2, 4, 8, 16)
        )
        self.head = nn.Linear(w, 4)

    def forward(self, x):
        x = self.stem(x)
        for b in self.body:
            x = x + b(x)
        return self.head(x.mean(-1))


def run_epoch(net, loader, opt, loss_fn):
    total, hits, n = 0.0, 0, 0
    for x, y in loader:
        opt.zero_grad(set_to_none=True)
        out = net(x)
        loss = loss_fn(out, y)
        loss.backward()
        opt.step()
        total += loss.item() * len(y)
        hits += (out.argmax(1) == y).sum().item()
        n += len(y)
    return total / n, hits / n, n


def main():
    create_db()
    torch.manual_seed(0)
    net = ResTCN()
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 3e-3, total_steps=30)
    # sqlite handles do not survive a fork
    loader = DataLoader(
        Windows(DB),
        batch_size=32,
        shuffle=True,
        drop_last=True,
        num_workers=2,
        multiprocessing_context="spawn",
        persistent_workers=True,
    )
    for epoch in range(30):
        t0 = time.perf_counter()
        loss, acc, n = run_epoch(net, loader, opt, nn.CrossEntropyLoss())
        sched.step()
        dt = time.perf_counter() - t0
        print(f"epoch {epoch:02d} loss {loss:.3f} acc {acc:.3f} {dt:.2f}s {n / dt:.0f} samples/s", flush=True)


if __name__ == "__main__":
    main()
