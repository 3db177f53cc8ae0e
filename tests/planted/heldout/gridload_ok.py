"""Day-ahead load forecasting for a fleet of smart meters."""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

LOOKBACK, HORIZON = 96, 24
ROOT = Path() / "data_gridload"

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=2048)
parser.add_argument("--epochs", type=int, default=50)
parser.add_argument("--lr", type=float, default=1e-3)
parser.add_argument("--hidden", type=int, default=448)
parser.add_argument("--steps", type=int, default=0)
args = parser.parse_args()

torch.manual_seed(7)
torch.set_num_threads(1)


def simulate_meters(meters=240, hours=5000):
    path = ROOT / "meters.npy"
    if not path.exists():
        ROOT.mkdir(exist_ok=True)
        rng = np.random.default_rng(0)
        t = np.arange(hours)
        daily = np.sin(2 * np.pi * (t[None] / 24 + rng.random((meters, 1))))
        weekly = 0.3 * np.sin(2 * np.pi * (t[None] / 168 + rng.random((meters, 1))))
        load = 2 + daily + weekly + 0.2 * rng.standard_normal((meters, hours))
        np.save(path, np.abs(load).astype(np.float32))
    return np.load(path)


class MeterWindows(Dataset):
    def __init__(self, load):
        self.load = load
        self.windows = np.lib.stride_tricks.sliding_window_view(load, LOOKBACK + HORIZON, axis=1)
        self.per_meter = load.shape[1] - LOOKBACK - HORIZON

    def __len__(self):
        return self.load.shape[0] * self.per_meter

    def __getitems__(self, indices):
        meter, start = np.divmod(np.asarray(indices), self.per_meter)
        window = self.windows[meter, start]
        history = window[:, :LOOKBACK]
        level, spread = history.mean(axis=1, keepdims=True), history.std(axis=1, keepdims=True) + 1e-3
        window = torch.from_numpy((window - level) / spread)
        return window[:, :LOOKBACK], window[:, LOOKBACK:]


loader = DataLoader(
    MeterWindows(simulate_meters()),
    batch_size=args.batch_size,
    shuffle=True,
    drop_last=True,
    collate_fn=lambda batch: batch,
)
model = nn.Sequential(
    nn.Linear(LOOKBACK, args.hidden),
    nn.GELU(),
    nn.Linear(args.hidden, args.hidden),
    nn.GELU(),
    nn.Linear(args.hidden, HORIZON),
)
opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.epochs * len(loader))

step, t0 = 0, time.perf_counter()
for epoch in range(args.epochs):
    for history, future in loader:
        opt.zero_grad()
        loss = nn.functional.l1_loss(model(history), future)
        loss.backward()
        opt.step()
        sched.step()
        step += 1
        if step == 3:
            t0 = time.perf_counter()
        if step % 100 == 0:
            print(f"epoch {epoch} step {step} mae {loss.item():.4f}", flush=True)
        if args.steps and step >= args.steps:
            print(f"seconds per step {(time.perf_counter() - t0) / (step - 3):.4f}")
            raise SystemExit
