# Discharge forecast at river gauges: 10 days of hourly readings -> next 24 hours.
import argparse
import time

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

ap = argparse.ArgumentParser()
ap.add_argument("--steps", type=int, default=0, help="stop after so many steps and report")
ap.add_argument("--epochs", type=int, default=60)
ap.add_argument("--batch", type=int, default=64)
ap.add_argument("--held-out", type=int, default=256, help="windows of the held-out catchment to score")
cfg = ap.parse_args()
torch.set_num_threads(1)

HOURS, CHANNELS, AHEAD = 168, 8, 24


def windows(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, CHANNELS, HOURS, generator=g).cumsum(-1).mul_(0.1)
    y = x[:, 0, -AHEAD:].flip(-1) + 0.05 * torch.randn(n, AHEAD, generator=g)
    return TensorDataset(x, y)


class Gauge(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        layers, c = [], CHANNELS
        for dil in (1, 2, 4, 8):
            layers += [nn.Conv1d(c, width, 3, padding=dil, dilation=dil), nn.ReLU()]
            c = width
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(width * 2, AHEAD)

    def forward(self, x):
        h = self.body(x)
        return self.head(torch.cat([h[..., -1], h.mean(-1)], 1))


train_dl = DataLoader(windows(12800, 1), batch_size=cfg.batch, shuffle=True)
held_dl = DataLoader(windows(cfg.held_out, 2), batch_size=cfg.batch)

net = Gauge()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=3)


@torch.no_grad()
def score():
    net.eval()
    err, n = 0.0, 0
    for x, y in held_dl:
        err += (net(x) - y).square().mean(1).sum().item()
        n += len(x)
    net.train()
    return err / n


taken, clock = 0, time.perf_counter()
for epoch in range(cfg.epochs):
    for x, y in train_dl:
        loss = nn.functional.mse_loss(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        taken += 1
    fitted = time.perf_counter()
    mse = score()
    scheduler.step(mse)
    print(
        f"epoch {epoch:3d}  train {loss.item():.4f}  held-out {mse:.4f}  fit {fitted - clock:.1f} s, all {time.perf_counter() - clock:.1f} s",
        flush=True,
    )
    if cfg.steps and taken >= cfg.steps:
        print(f"{(time.perf_counter() - clock) / taken:.4f} s/step")
        break
