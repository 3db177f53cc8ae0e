"""Fits an implicit surface: a deep, thin network learns the signed distance to a lump of spheres."""

import argparse
import time

import torch
from torch import nn


def scene(points: int, generator: torch.Generator):
    where = torch.rand(points, 3, generator=generator) * 2 - 1
    centres = torch.rand(12, 3, generator=generator) * 1.2 - 0.6
    radii = torch.rand(12, generator=generator) * 0.25 + 0.05
    distance = (torch.cdist(where, centres) - radii).amin(dim=1, keepdim=True)
    return where, distance


class Thin(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mix = nn.Linear(width, width)

    def forward(self, h):
        return h + nn.functional.gelu(self.mix(self.norm(h)))


def surface(width: int, depth: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(3, width), *(Thin(width) for _ in range(depth)), nn.LayerNorm(width), nn.Linear(width, 1)
    )


def sweep(where, distance, size, generator):
    """One pass over all points in random order, `size` at a time."""
    for pick in torch.randperm(len(where), generator=generator).split(size):
        yield where[pick], distance[pick]


def cli():
    parser = argparse.ArgumentParser()
    parser.add_argument("--points", type=int, default=65_536)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--depth", type=int, default=24)
    parser.add_argument("--lr", type=float, default=1e-3)
    return parser.parse_args()


if __name__ == "__main__":
    args = cli()
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(6)
    where, distance = scene(args.points, generator)
    net = surface(args.width, args.depth)
    opt = torch.optim.SGD(net.parameters(), lr=args.lr, momentum=0.9)
    done, clock = 0, time.perf_counter()
    for epoch in range(args.epochs):
        for x, d in sweep(where, distance, args.batch, generator):
            opt.zero_grad()
            loss = (net(x) - d).abs().mean()
            loss.backward()
            opt.step()
            before, done = done, done + len(x)
            if done // 16_384 > before // 16_384:
                print(
                    f"epoch {epoch} points {done} l1 {loss.item():.4f} {done / (time.perf_counter() - clock):.0f} points/s",
                    flush=True,
                )
