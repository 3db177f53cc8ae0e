"""Chargeback prediction from a card ledger."""

import argparse
import csv
import random
import time
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler

CSV = Path() / "data_ledger" / "ledger.csv"
COUNTRIES = ["DE", "FR", "PL", "SE", "IT", "ES", "NL", "AT"]


def ensure_ledger(n=800_000):
    if CSV.exists():
        return
    CSV.parent.mkdir(exist_ok=True)
    rnd, t = random.Random(1), datetime(2023, 1, 1)
    with open(CSV.with_suffix(".tmp"), "w", newline="") as f:
        w = csv.writer(f)
        w.writerow(["booked", "amount", "fee", "country", "shop", "chargeback"])
        for _ in range(n):
            t += timedelta(seconds=rnd.randrange(1, 90))
            amount = rnd.randrange(100, 900_000)
            w.writerow(
                [
                    t.isoformat(),
                    f"{amount / 100:.2f}",
                    f"{amount / 7000:.2f}",
                    rnd.choice(COUNTRIES),
                    f"shop-{rnd.randrange(20_000):05d}",
                    int(rnd.random() < 0.1),
                ]
            )
    CSV.with_suffix(".tmp").rename(CSV)


class Ledger(Dataset):
    """columns as arrays; a row is a view"""

    def __init__(self, path):
        import pyarrow as pa
        import pyarrow.compute as pc
        from pyarrow import csv as pacsv

        t = pacsv.read_csv(path)
        amount, fee = t["amount"].to_numpy(), t["fee"].to_numpy()
        hour, day = pc.hour(t["booked"]).to_numpy(), pc.day_of_week(t["booked"]).to_numpy()
        self.num = torch.from_numpy(np.stack([amount / 1000, fee, hour / 24, day / 7], 1).astype(np.float32))
        country = pc.index_in(t["country"], value_set=pa.array(COUNTRIES)).to_numpy()
        shop = pc.utf8_slice_codeunits(t["shop"], 5).cast("int64").to_numpy()
        self.cat = torch.from_numpy(np.stack([country, shop], 1).astype(np.int64))
        self.y = torch.from_numpy(t["chargeback"].to_numpy().astype(np.float32))

    def __len__(self):
        return len(self.y)

    def __getitems__(self, rows):
        rows = torch.as_tensor(rows)
        return self.num[rows], self.cat[rows], self.y[rows]


def as_is(batch):
    return batch


class ChargebackNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.country = nn.Embedding(len(COUNTRIES), 8)
        self.shop = nn.Embedding(20_000, 24)
        self.mlp = nn.Sequential(nn.Linear(36, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1))

    def forward(self, num, cat):
        return self.mlp(torch.cat([num, self.country(cat[:, 0]), self.shop(cat[:, 1])], 1)).squeeze(1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=0)
    ap.add_argument("--epochs", type=int, default=20)
    args = ap.parse_args()
    torch.set_num_threads(1)
    ensure_ledger()
    ledger = Ledger(CSV)
    print(len(ledger), "bookings", flush=True)
    loader = DataLoader(
        ledger,
        batch_size=192,
        sampler=RandomSampler(ledger, num_samples=192 * 400),
        num_workers=1,
        multiprocessing_context="spawn",
        persistent_workers=True,
        prefetch_factor=4,
        collate_fn=as_is,
    )
    net = ChargebackNet()
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    n, t0 = 0, time.perf_counter()
    for epoch in range(args.epochs):
        for num, cat, y in loader:
            loss = nn.functional.binary_cross_entropy_with_logits(net(num, cat), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            n += 1
            if n == 1:
                first = time.perf_counter() - t0
            if n == args.steps:
                took = time.perf_counter() - t0
                print(f"{took / n:.4f} s/step (first {first:.2f} s, others {(took - first) / (n - 1):.4f} s)")
                return
        print(f"epoch {epoch} {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
