"""Quantile forecasts of mid-price moves from order book snapshots."""

import argparse
import os
import time

import numpy as np
import torch
import torch.nn as nn

PATH = "data_orderbook/book.npy"
T, FEAT = 160, 20
QUANT = (0.1, 0.5, 0.9)


def make_book(n=200_000):
    if not os.path.exists(PATH):
        os.makedirs("data_orderbook", exist_ok=True)
        rng = np.random.default_rng(31)
        x = rng.normal(size=(n, FEAT)).astype(np.float32)
        x[:, 0] = np.cumsum(0.02 * x[:, 0]) + 0.1 * x[:, 1]
        np.save("data_orderbook/tmp.npy", x)
        os.rename("data_orderbook/tmp.npy", PATH)
    return torch.from_numpy(np.load(PATH))


class DecayBank(nn.Module):
    """Exponential averages of every feature with several learnable half-lives."""

    def __init__(self, k=8):
        super().__init__()
        self.logit = nn.Parameter(torch.linspace(-1.0, 4.0, k))

    def forward(self, x):
        decay = torch.sigmoid(self.logit)
        banks = []
        for a in decay:
            state = torch.zeros_like(x[:, 0])
            track = []
            for t in range(x.shape[1]):
                state = a * state + (1 - a) * x[:, t]
                track.append(state)
            banks.append(torch.stack(track, dim=1))
        return torch.cat(banks, dim=-1)


class Forecaster(nn.Module):
    def __init__(self, k=8, w=48):
        super().__init__()
        self.bank = DecayBank(k)
        self.mix = nn.Sequential(
            nn.Conv1d(k * FEAT, w, 3, padding=1), nn.GELU(), nn.Conv1d(w, w, 3, padding=2, dilation=2), nn.GELU()
        )
        self.q = nn.Linear(w, len(QUANT))
        self.vol = nn.Linear(w, 1)

    def forward(self, x):
        h = self.mix(self.bank(x).transpose(1, 2))[..., -20:].mean(-1)
        return self.q(h), self.vol(h).squeeze(-1)


def pinball(pred, y, tau):
    e = y[:, None] - pred
    return torch.maximum(tau * e, (tau - 1) * e).mean()


def draw(book, batch, gen):
    s = torch.randint(0, len(book) - T - 10, (batch,), generator=gen)
    win = book[s[:, None] + torch.arange(T)]
    move = book[s + T + 9, 0] - book[s + T - 1, 0]
    return win, move


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=3500)
    p.add_argument("--batch", type=int, default=48)
    p.add_argument("--report", type=int, default=20)
    args = p.parse_args()
    book = make_book()
    gen = torch.Generator().manual_seed(0)
    net = Forecaster()
    opt = torch.optim.AdamW(net.parameters(), 5e-4)
    tau = torch.tensor(QUANT)
    t0 = time.time()
    for step in range(1, args.steps + 1):
        x, y = draw(book, args.batch, gen)
        q, v = net(x)
        loss = pinball(q, y, tau) + 0.1 * (v - y.abs()).square().mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        if step % args.report == 0:
            dt = time.time() - t0
            print(f"{step} loss {loss.item():.4f} {args.report * args.batch / dt:.0f} windows/s", flush=True)
            t0 = time.time()


if __name__ == "__main__":
    main()
