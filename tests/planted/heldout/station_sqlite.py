"""Temperature correction for weather stations; readings come from an sqlite database, one block of rows per query."""

import argparse
import os
import sqlite3
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

COLS, ROWS_PER_BLOCK = 16, 256


def create_db(folder):
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "stations.db")
    if os.path.exists(path):
        return path
    rng = np.random.default_rng(9)
    db = sqlite3.connect(path + ".tmp")
    db.execute("create table block (id integer primary key, x blob, y blob)")
    for i in range(40):
        x = rng.normal(size=(ROWS_PER_BLOCK, COLS)).astype(np.float32)
        y = (np.sin(x[:, 0]) + 0.3 * x[:, 1] * x[:, 2]).astype(np.float32)
        db.execute("insert into block values (?, ?, ?)", (i, x.tobytes(), y.tobytes()))
    db.commit()
    db.close()
    os.replace(path + ".tmp", path)
    return path


class Blocks(Dataset):
    def __init__(self, path):
        self.path = path
        self.db = None
        with sqlite3.connect(path) as db:
            self.n = db.execute("select count(*) from block").fetchone()[0]

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        if self.db is None:
            self.db = sqlite3.connect(f"file:{self.path}?mode=ro", uri=True)
        x, y = self.db.execute("select x, y from block where id = ?", (i,)).fetchone()
        x = np.frombuffer(x, np.float32).reshape(-1, COLS).copy()
        return torch.from_numpy(x), torch.from_numpy(np.frombuffer(y, np.float32).copy())


class Trainer:
    def __init__(self, model, loader, lr=1e-3):
        self.model, self.loader = model, loader
        self.opt = torch.optim.Adam(model.parameters(), lr)
        self.loss_fn = nn.MSELoss()

    def step(self, x, y):
        self.opt.zero_grad()
        loss = self.loss_fn(self.model(x).squeeze(-1), y)
        loss.backward()
        self.opt.step()
        return loss

    def fit(self, epochs):
        for epoch in range(epochs):
            t0, n = time.time(), 0
            for x, y in self.loader:
                loss = self.step(x, y)
                n += len(x)
            print(f"epoch {epoch} mse {loss.item():.4f} {n / (time.time() - t0):.1f} samples/s", flush=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("data")
    p.add_argument("--epochs", type=int, default=300)
    p.add_argument("--fixed", action="store_true")
    args = p.parse_args()
    torch.manual_seed(1)
    dataset = Blocks(create_db(args.data))
    # sqlite connections do not survive a fork
    loader = DataLoader(
        dataset,
        batch_size=None,
        shuffle=True,
        num_workers=2,
        multiprocessing_context="spawn",
        persistent_workers=args.fixed,
    )
    width = 512
    model = nn.Sequential(
        nn.Linear(COLS, width),
        nn.GELU(),
        nn.Linear(width, width),
        nn.GELU(),
        nn.Linear(width, width),
        nn.GELU(),
        nn.Linear(width, width),
        nn.GELU(),
        nn.Linear(width, 1),
    )
    Trainer(model, loader).fit(args.epochs)


if __name__ == "__main__":
    main()
