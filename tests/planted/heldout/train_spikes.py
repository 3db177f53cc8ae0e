"""Decode hand velocity from binned neural activity with leaky integrator layers."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Leaky(nn.Module):
    """h[t] = a * h[t-1] + (1 - a) * W x[t], one time constant per unit."""

    def __init__(self, d_in, d_out):
        super().__init__()
        self.lin = nn.Linear(d_in, d_out)
        self.rate = nn.Parameter(torch.linspace(0.5, 3.0, d_out))

    def forward(self, x):
        drive = self.lin(x)
        a = torch.sigmoid(self.rate)
        h = torch.zeros_like(drive[:, 0])
        states = []
        for t in range(drive.shape[1]):
            h = a * h + (1 - a) * drive[:, t]
            states.append(h)
        return torch.tanh(torch.stack(states, 1))


class LeakyScan(Leaky):
    def forward(self, x):
        a = torch.sigmoid(self.rate)
        h = (1 - a) * self.lin(x)
        shift = 1
        while shift < h.shape[1]:
            h = h + nn.functional.pad(a**shift * h[:, :-shift], (0, 0, shift, 0))
            shift *= 2
        return torch.tanh(h)


def session(trials, bins, neurons, seed):
    g = torch.Generator().manual_seed(seed)
    vel = torch.cumsum(torch.randn(trials, bins, 2, generator=g), 1) * 0.1
    tuning = torch.randn(2, neurons, generator=g)
    rates = torch.exp(0.3 * (vel @ tuning) - 1).clamp(max=8)
    return torch.poisson(rates, generator=g), vel


def build(neurons, hidden, cls):
    return nn.Sequential(cls(neurons, hidden), cls(hidden, hidden), nn.Linear(hidden, 2))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=30)
    p.add_argument("--bins", type=int, default=120)
    p.add_argument("--hidden", type=int, default=32)
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--stop", type=int, default=0)
    p.add_argument("--fixed", action="store_true")
    args = p.parse_args()
    torch.manual_seed(7)

    x, v = session(700, args.bins, 64, 7)
    train = DataLoader(TensorDataset(x[:640], v[:640]), args.batch, shuffle=True)
    model = build(64, args.hidden, LeakyScan if args.fixed else Leaky)
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=4)

    count = 0
    t0 = time.time()
    for epoch in range(args.epochs):
        for spikes, vel in train:
            pred = model(spikes)
            loss = nn.functional.mse_loss(pred, vel) + 0.1 * nn.functional.mse_loss(pred.diff(dim=1), vel.diff(dim=1))
            opt.zero_grad()
            loss.backward()
            opt.step()
            count += 1
            if count == args.stop:
                break
        with torch.no_grad():
            held = nn.functional.mse_loss(model(x[640:]), v[640:])
        plateau.step(held)
        if epoch % 6 == 0:
            print(f"epoch {epoch} held-out mse {held:.4f}", flush=True)
        if count == args.stop:
            break
    print(f"{count} steps in {time.time() - t0:.1f} s")


if __name__ == "__main__":
    main()
