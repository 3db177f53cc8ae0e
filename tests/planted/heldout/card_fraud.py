"""Card fraud scoring, tabular. Three column groups kept as arrays on disk, memory-mapped."""

import argparse, os, tempfile
import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


def write_columns(folder, n):
    rng = np.random.default_rng(11)
    num = rng.standard_normal((n, 20), dtype=np.float32)
    cat = rng.integers(0, 500, (n, 6), dtype=np.int32)
    y = (num[:, 0] + 0.5 * num[:, 3] * num[:, 5] + (cat[:, 1] % 7 == 0) > 1.6).astype(np.float32)
    for name, arr in (("num", num), ("cat", cat), ("y", y)):
        np.save(os.path.join(folder, name + ".npy"), arr)


class Transactions(Dataset):
    def __init__(self, folder):
        self.num = np.load(os.path.join(folder, "num.npy"), mmap_mode="r")
        self.cat = np.load(os.path.join(folder, "cat.npy"), mmap_mode="r")
        self.y = np.load(os.path.join(folder, "y.npy"), mmap_mode="r")

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return {
            "num": torch.from_numpy(np.array(self.num[i])),
            "cat": torch.from_numpy(self.cat[i].astype(np.int64)),
            "y": torch.tensor(self.y[i]),
        }


class BatchedTransactions(Transactions):
    def __getitems__(self, idx):
        idx = np.asarray(idx)
        return {
            "num": torch.from_numpy(self.num[idx]),
            "cat": torch.from_numpy(self.cat[idx].astype(np.int64)),
            "y": torch.from_numpy(self.y[idx]),
        }


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.ModuleList(nn.Embedding(500, 4) for _ in range(6))
        self.mlp = nn.Sequential(nn.Linear(20 + 24, 48), nn.ReLU(), nn.Linear(48, 1))

    def forward(self, num, cat):
        e = [m(cat[:, j]) for j, m in enumerate(self.emb)]
        return self.mlp(torch.cat([num, *e], 1)).squeeze(1)


def train(folder, args):
    if args.fixed:
        loader = DataLoader(BatchedTransactions(folder), batch_size=args.batch, shuffle=True, collate_fn=lambda b: b)
    else:
        loader = DataLoader(Transactions(folder), batch_size=args.batch, shuffle=True)
    model = Scorer()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    lossf = nn.BCEWithLogitsLoss()
    n = 0
    for epoch in range(args.epochs):
        for batch in loader:
            opt.zero_grad()
            loss = lossf(model(batch["num"], batch["cat"]), batch["y"])
            loss.backward()
            opt.step()
            n += 1
            if n % 200 == 0:
                print("epoch", epoch, "step", n, "loss", round(loss.item(), 4), flush=True)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--rows", type=int, default=800_000)
    ap.add_argument("--batch", type=int, default=1024)
    ap.add_argument("--epochs", type=int, default=5)
    ap.add_argument("--fixed", action="store_true")
    a = ap.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="fraud_") as d:
        write_columns(d, a.rows)
        train(d, a)
