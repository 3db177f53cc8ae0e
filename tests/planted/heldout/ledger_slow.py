"""Chargeback prediction from a card ledger."""

import argparse
import csv
import random
import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path

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


@dataclass
class Booking:
    booked: datetime
    amount: Decimal
    fee: Decimal
    country: str
    shop: str
    chargeback: bool


class Ledger(Dataset):
    def __init__(self, path):
        with open(path, newline="") as f:
            self.bookings = [
                Booking(
                    datetime.fromisoformat(r["booked"]),
                    Decimal(r["amount"]),
                    Decimal(r["fee"]),
                    r["country"],
                    r["shop"],
                    r["chargeback"] == "1",
                )
                for r in csv.DictReader(f)
            ]

    def __len__(self):
        return len(self.bookings)

    def __getitem__(self, i):
        b = self.bookings[i]
        num = torch.tensor([float(b.amount) / 1000, float(b.fee), b.booked.hour / 24, b.booked.weekday() / 7])
        cat = torch.tensor([COUNTRIES.index(b.country), int(b.shop[5:])])
        return num, cat, float(b.chargeback)


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
    )
    net = ChargebackNet()
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    n, t0 = 0, time.perf_counter()
    for epoch in range(args.epochs):
        for num, cat, y in loader:
            loss = nn.functional.binary_cross_entropy_with_logits(net(num, cat), y.float())
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
