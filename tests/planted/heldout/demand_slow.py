"""Store-item demand forecasting with a recurrent net (weekly retraining job)."""

import csv
import os
import time
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

CSV = "data_demand/sales.csv"
DAYS, HIST, HORIZON = 140, 56, 7


@dataclass
class Settings:
    epochs: int = 28
    steps_per_epoch: int = 60
    batch: int = 64
    hidden: int = 128
    lr: float = 2e-3
    seed: int = 5
    history: list = field(default_factory=list)


def write_csv():
    if os.path.exists(CSV):
        return
    os.makedirs("data_demand", exist_ok=True)
    rng = np.random.default_rng(14)
    level = rng.gamma(3, 6, 1800)[:, None]
    week = 1 + 0.4 * np.sin(2 * np.pi * (np.arange(DAYS)[None] + rng.integers(0, 7, (1800, 1))) / 7)
    sales = rng.poisson(level * week)
    with open(CSV + ".tmp", "w", newline="") as f:
        w = csv.writer(f)
        for k, row in enumerate(sales.tolist()):
            w.writerow([f"S{k % 30:02d}-{k // 30:03d}"] + row)
    os.rename(CSV + ".tmp", CSV)


def read_csv():
    with open(CSV) as f:
        x = np.array([[float(v) for v in r[1:]] for r in csv.reader(f)], dtype=np.float32)
    return torch.from_numpy(np.log1p(x))


class Forecaster(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.rnn = nn.GRU(3, hidden, 2, batch_first=True)
        self.head = nn.Linear(hidden, HORIZON)

    def forward(self, x):
        h, _ = self.rnn(x)
        return self.head(h[:, -1])


class Trainer:
    def __init__(self, s):
        self.s = s
        self.sales = read_csv()
        day = torch.arange(DAYS)
        self.season = torch.stack([torch.sin(6.2832 * day / 7), torch.cos(6.2832 * day / 7)], -1)
        start = DAYS - HIST - HORIZON
        xs, ys = self.windows(torch.arange(len(self.sales)), torch.full((len(self.sales),), start))
        self.val = DataLoader(TensorDataset(xs, ys), batch_size=1)
        self.net = Forecaster(s.hidden)
        self.opt = torch.optim.Adam(self.net.parameters(), s.lr)
        self.sched = torch.optim.lr_scheduler.StepLR(self.opt, 8, 0.5)

    def windows(self, item, start):
        t = start[:, None] + torch.arange(HIST)
        x = torch.cat([self.sales[item[:, None], t].unsqueeze(-1), self.season[t]], -1)
        return x, self.sales[item[:, None], start[:, None] + HIST + torch.arange(HORIZON)]

    def train_epoch(self):
        self.net.train()
        total = 0.0
        for _ in range(self.s.steps_per_epoch):
            item = torch.randint(0, len(self.sales), (self.s.batch,))
            start = torch.randint(0, DAYS - HIST - 2 * HORIZON, (self.s.batch,))
            x, y = self.windows(item, start)
            loss = nn.functional.huber_loss(self.net(x), y)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            total += loss.item()
        return total / self.s.steps_per_epoch

    @torch.no_grad()
    def evaluate(self):
        self.net.eval()
        err, n = 0.0, 0
        for x, y in self.val:
            p = self.net(x)
            err += (p - y).abs().sum().item()
            n += y.numel()
        return err / n

    def fit(self):
        for e in range(self.s.epochs):
            t0 = time.time()
            loss = self.train_epoch()
            t1 = time.time()
            mae = self.evaluate()
            self.sched.step()
            self.s.history.append((loss, mae))
            print(
                f"epoch {e} loss {loss:.4f} mae {mae:.4f} train {t1 - t0:.1f}s total {time.time() - t0:.1f}s",
                flush=True,
            )


if __name__ == "__main__":
    write_csv()
    cfg = Settings()
    torch.manual_seed(cfg.seed)
    Trainer(cfg).fit()
