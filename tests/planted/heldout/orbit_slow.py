import argparse
import time
from dataclasses import dataclass

import torch
import torch.nn as nn

# Surrogate for an orbit propagator: state at t0 (+ drag terms) -> state at t0 + dt


@dataclass
class Cfg:
    rows: int = 400_000
    inputs: int = 12
    width: int = 64
    depth: int = 24
    batch: int = 8
    lr: float = 1e-3
    epochs: int = 20


class ResidualBlock(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.norm = nn.LayerNorm(w)
        self.up = nn.Linear(w, w)
        self.act = nn.GELU()
        self.down = nn.Linear(w, w)

    def forward(self, h):
        return h + self.down(self.act(self.up(self.norm(h))))


class Propagator(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.inp = nn.Linear(cfg.inputs, cfg.width)
        self.blocks = nn.Sequential(*[ResidualBlock(cfg.width) for _ in range(cfg.depth)])
        self.out = nn.Linear(cfg.width, 6)

    def forward(self, s):
        return self.out(self.blocks(self.inp(s)))


def simulate(cfg):
    torch.manual_seed(11)
    s = torch.randn(cfg.rows, cfg.inputs)
    w = torch.randn(cfg.inputs, 6) / 4
    return s, torch.sin(s @ w) + 0.01 * torch.randn(cfg.rows, 6)


def train(cfg, max_steps=0):
    state, target = simulate(cfg)
    net = Propagator(cfg)
    optim = torch.optim.AdamW(net.parameters(), lr=cfg.lr)
    n_step, begin = 0, time.perf_counter()
    for epoch in range(cfg.epochs):
        order = torch.randperm(cfg.rows)
        for part in order.split(cfg.batch):
            loss = nn.functional.smooth_l1_loss(net(state[part]), target[part])
            optim.zero_grad(set_to_none=True)
            loss.backward()
            optim.step()
            n_step += 1
            if n_step == max_steps:
                took = time.perf_counter() - begin
                print(f"{took / n_step:.4f} s/step, {took / n_step / cfg.batch * 1e6:.1f} us/row")
                return
            if n_step % 500 == 0:
                print(f"{epoch} {n_step} {loss.item():.5f}", flush=True)


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=0)
    train(Cfg(), p.parse_args().steps)
