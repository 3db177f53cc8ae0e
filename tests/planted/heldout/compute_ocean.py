"""Learn the reaction terms of a plankton model: fields are stepped forward and compared with the next snapshot."""

import argparse
import time

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=16)
parser.add_argument("--grid", type=int, default=64)
parser.add_argument("--substeps", type=int, default=3)
parser.add_argument("--lr", type=float, default=3e-3)
parser.add_argument("--seconds", type=float, default=100, help="wall clock to train for")
parser.add_argument("--fixed", action="store_true", help="single instead of double precision")
args = parser.parse_args()


def laplacian(f):
    return f.roll(1, -1) + f.roll(-1, -1) + f.roll(1, -2) + f.roll(-1, -2) - 4 * f


class Plankton(nn.Module):
    """Nutrient, phyto- and zooplankton with learned rates, integrated explicitly."""

    def __init__(self, substeps):
        super().__init__()
        self.substeps = substeps
        self.rates = nn.Parameter(torch.rand(12) * 0.5 + 0.25)
        self.diffusion = nn.Parameter(torch.full((3,), 0.05))

    def tendency(self, n, p, z, light):
        r = nn.functional.softplus(self.rates)
        uptake = r[0] * torch.tanh(light * r[1]) * n / (n + r[2]) * torch.exp(-r[3] * p) * p
        grazing = r[4] * (1 - torch.exp(-r[5] * p)) * z * torch.sigmoid(r[6] - z)
        death_p = 0.1 * r[7] * p * torch.log1p(p * p)
        death_z = 0.1 * r[8] * z * torch.sqrt(z * z + 1e-4)
        dn = -uptake + r[9] * 0.2 * (death_p + death_z) + self.diffusion[0] * laplacian(n)
        dp = uptake - grazing - death_p + self.diffusion[1] * laplacian(p)
        dz = torch.sigmoid(r[10]) * grazing - death_z + self.diffusion[2] * laplacian(z)
        return dn, dp, dz

    def forward(self, state, light):
        n, p, z = state.unbind(1)
        for _ in range(self.substeps):
            dn, dp, dz = self.tendency(n, p, z, light)
            n, p, z = (n + 0.1 * dn).clamp(0, 5), (p + 0.1 * dp).clamp(0, 5), (z + 0.1 * dz).clamp(0, 5)
        return torch.stack([n, p, z], 1)


def main():
    torch.set_num_threads(1)  # the box is shared
    torch.manual_seed(3)
    count = 384
    truth = Plankton(args.substeps)
    states = torch.rand(count, 3, args.grid, args.grid) * 2
    light = torch.rand(count, args.grid, args.grid)
    with torch.no_grad():
        targets = torch.cat([truth(s, l) for s, l in zip(states.split(64), light.split(64))])
    dtype = torch.float32 if args.fixed else torch.float64
    states, light, targets = states.to(dtype), light.to(dtype), targets.to(dtype)
    model = Plankton(args.substeps).to(dtype)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)

    began, step, epoch = time.time(), 0, 0
    while time.time() - began < args.seconds:
        mark, done = time.time(), 0
        for picked in torch.randperm(count).split(args.batch):
            loss = nn.functional.mse_loss(model(states[picked], light[picked]), targets[picked])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step, done = step + 1, done + 1
        print(
            f"epoch {epoch} step {step} loss {loss.item():.6f} {(time.time() - mark) / done * 1e3:.0f} ms/step",
            flush=True,
        )
        epoch += 1


main()
