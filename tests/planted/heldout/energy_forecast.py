"""Forecast tomorrow's load of a building from a week of meter readings; several metrics, early stopping off."""

import argparse
import csv
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

from stoker import sim


def series(buildings=400, hours=24 * 60, seed=2):
    rng = np.random.default_rng(seed)
    t = np.arange(hours)
    daily = np.sin(2 * np.pi * t / 24)[None] * rng.uniform(0.5, 2, (buildings, 1))
    return torch.from_numpy((daily + 0.2 * rng.normal(size=(buildings, hours))).astype(np.float32))


def batches(load, size, count, generator):
    """Windows of 168 hours, and the 24 hours that follow, cut in one go."""
    offsets = torch.arange(168 + 24)
    for _ in range(count):
        which = torch.randint(len(load), (size, 1), generator=generator)
        start = torch.randint(load.shape[1] - 192, (size, 1), generator=generator)
        cut = load[which, start + offsets]
        yield cut[:, :168], cut[:, 168:]


class Metrics:
    """Sums that stay on the device until somebody asks."""

    def __init__(self, device):
        self.sums = torch.zeros(3, device=device)
        self.count = 0

    def update(self, guess, truth):
        error = (guess - truth).detach()
        self.sums = self.sums + torch.stack([error.abs().mean(), error.square().mean(), error.mean()])
        self.count += 1

    def compute(self):
        mae, mse, bias = (self.sums / self.count).tolist()
        return {"mae": mae, "rmse": mse**0.5, "bias": bias}


ap = argparse.ArgumentParser(description=__doc__)
ap.add_argument("results", type=Path)
ap.add_argument("--epochs", type=int, default=60)
ap.add_argument("--fixed", action="store_true")
args = ap.parse_args()
args.results.mkdir(parents=True, exist_ok=True)

torch.manual_seed(0)
load = series()
train, held_out = load[:360], load[360:]
model = nn.Sequential(nn.Linear(168, 32), nn.SiLU(), nn.Linear(32, 24))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.98)
device = sim.Device(forward=30e-3, backward=55e-3, optimizer=5e-3)
model = device.place(model, optimizer)
generator = torch.Generator().manual_seed(4)

with open(args.results / "forecast.csv", "w", newline="") as handle:
    writer = csv.writer(handle)
    writer.writerow(["epoch", "part", "mae", "rmse", "bias"])
    for epoch in range(args.epochs):
        began = time.perf_counter()
        metrics = Metrics(device)
        for step, (x, y) in enumerate(batches(train, 512, 60, generator)):
            x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            guess = model(x)
            loss = nn.functional.smooth_l1_loss(guess, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            metrics.update(guess, y)
            if step % 30 == 29:
                print(f"epoch {epoch} step {step + 1}: {metrics.compute()}", flush=True)
        writer.writerow([epoch, "train", *metrics.compute().values()])
        schedule.step()
        with torch.no_grad():
            metrics = Metrics(device)
            for x, y in batches(held_out, 512, 5, torch.Generator().manual_seed(8)):
                x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
                metrics.update(model(x), y)
        writer.writerow([epoch, "held out", *metrics.compute().values()])
        handle.flush()
        print(f"epoch {epoch} in {time.perf_counter() - began:.1f} s: {metrics.compute()}", flush=True)
        if epoch % 5 == 4:
            torch.save(model.state_dict(), args.results / "forecast.pt")
