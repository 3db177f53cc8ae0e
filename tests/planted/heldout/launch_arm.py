"""Inverse dynamics of a robot arm: a very deep, very narrow residual net on joint states."""

import argparse
import time

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, width)
        self.down = nn.Linear(width, width)
        self.act = nn.SiLU()

    def forward(self, x):
        return x + 0.1 * self.down(self.act(self.up(self.norm(x))))


def simulate_arm(samples, joints=7):
    """States (angle, velocity, acceleration) and the torque that a made-up arm needs for them."""
    q, v, a = torch.randn(3, samples, joints)
    inertia = 1.5 + torch.cos(q).cumsum(1)
    torque = inertia * a + 0.3 * v * v.abs() + 9.81 * torch.sin(q.cumsum(1))
    return torch.cat([q, v, a], 1), torque / 10


def run_epoch(model, states, torques, batch_size, optimizer=None):
    order = torch.randperm(len(states)) if optimizer else torch.arange(len(states))
    total = 0.0
    for rows in order.split(batch_size):
        loss = nn.functional.smooth_l1_loss(model(states[rows]), torques[rows])
        if optimizer:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        total += loss.item() * len(rows)
    return total / len(states)


if __name__ == "__main__":
    cli = argparse.ArgumentParser()
    cli.add_argument("--depth", type=int, default=32)
    cli.add_argument("--width", type=int, default=16)
    cli.add_argument("--batch-size", type=int, default=4)
    cli.add_argument("--seconds", type=float, default=90)
    cli.add_argument("--fixed", action="store_true", help="32 times the batch, learning rate to match")
    args = cli.parse_args()

    torch.set_num_threads(1)  # one is faster for layers this small
    torch.manual_seed(7)
    batch_size, lr = (args.batch_size * 32, 2e-3) if args.fixed else (args.batch_size, 5e-4)
    states, torques = simulate_arm(4096)
    val_states, val_torques = simulate_arm(256)
    blocks = [Block(args.width) for _ in range(args.depth)]
    model = nn.Sequential(nn.Linear(21, args.width), *blocks, nn.Linear(args.width, 7))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    began, epoch = time.time(), 0
    while time.time() - began < args.seconds:
        t = time.time()
        loss = run_epoch(model, states, torques, batch_size, optimizer)
        took = time.time() - t
        with torch.no_grad():
            val = run_epoch(model, val_states, val_torques, 256)
        print(f"epoch {epoch}: train {loss:.4f} val {val:.4f}, {len(states) / took:.0f} samples/s", flush=True)
        epoch += 1
