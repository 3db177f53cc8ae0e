"""A small GAN on synthetic 48x48 pictures, learnt at 16x16. Two networks, two optimizers, an averaged generator for sampling."""

import argparse
import copy
import os

import torch
import torch.nn as nn

from stoker import sim

p = argparse.ArgumentParser()
p.add_argument("out")
p.add_argument("--niter", type=int, default=500)
p.add_argument("--batchSize", type=int, default=96)
p.add_argument("--nz", type=int, default=24)
p.add_argument("--depth", type=int, default=20)
p.add_argument("--fixed", action="store_true")
opt = p.parse_args()
os.makedirs(opt.out, exist_ok=True)
torch.manual_seed(7)


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.fc = nn.Linear(width, width)
        self.gain = nn.Parameter(torch.full((1,), 0.1))

    def forward(self, x):
        return x + self.gain * torch.relu(self.fc(x))


def tower(n_in, n_out, width=24):
    return nn.Sequential(nn.Linear(n_in, width), *[Residual(width) for _ in range(opt.depth)], nn.Linear(width, n_out))


images = torch.randint(0, 256, (7680, 3, 48, 48), dtype=torch.uint8)
netG, netD = tower(opt.nz, 3 * 16 * 16), tower(3 * 16 * 16, 1)
averaged = copy.deepcopy(netG)
optimizerD = torch.optim.Adam(netD.parameters(), lr=2e-4, betas=(0.5, 0.999))
optimizerG = torch.optim.Adam(netG.parameters(), lr=2e-4, betas=(0.5, 0.999))
device = sim.Device(optimizer=1e-3)
netD = device.place(netD, optimizerD, forward=3e-3, backward=4.5e-3)
netG = device.place(netG, optimizerG, forward=3e-3, backward=4.5e-3)
criterion = nn.BCEWithLogitsLoss()
real_label = torch.ones(opt.batchSize, 1).to(device)
fake_label = torch.zeros(opt.batchSize, 1).to(device)
names = ("D(x)", "D(G(z))", "D(G(z)) after", "loss D", "loss G")


def load(idx, sigma=0.1):
    """Pixels in [-1, 1], with a little instance noise."""
    x = images[idx].float().div_(127.5).sub_(1)
    x.add_(torch.randn_like(x), alpha=sigma)
    return nn.functional.avg_pool2d(x, 3).flatten(1)


@torch.no_grad()
def average(into, source, decay=0.999):
    for a, b in zip(into.parameters(), source.parameters()):
        a.mul_(decay).add_(b, alpha=1 - decay)


for epoch in range(opt.niter):
    order = torch.randperm(len(images)).split(opt.batchSize)
    history = []
    for i, idx in enumerate(order):
        # (1) the discriminator: log(D(x)) + log(1 - D(G(z)))
        netD.zero_grad()
        real = load(idx).to(device, non_blocking=True)
        output = netD(real)
        errD_real = criterion(output, real_label)
        errD_real.backward()
        D_x = output.detach().mean() if opt.fixed else output.mean().item()

        noise = torch.randn(opt.batchSize, opt.nz).to(device, non_blocking=True)
        fake = netG(noise)
        output = netD(fake.detach())
        errD_fake = criterion(output, fake_label)
        errD_fake.backward()
        D_G_z1 = output.detach().mean() if opt.fixed else output.mean().item()
        errD = (errD_real + errD_fake).detach()
        nn.utils.clip_grad_norm_(netD.parameters(), 5.0)
        optimizerD.step()

        # (2) the generator: log(D(G(z)))
        netG.zero_grad()
        output = netD(fake)
        errG = criterion(output, real_label)
        errG.backward()
        D_G_z2 = output.detach().mean() if opt.fixed else output.mean().item()
        nn.utils.clip_grad_norm_(netG.parameters(), 5.0)
        optimizerG.step()
        average(averaged, netG)

        if opt.fixed:
            history.append((D_x, D_G_z1, D_G_z2, errD, errG.detach()))
        else:
            history.append((D_x, D_G_z1, D_G_z2, errD.item(), errG.item()))
        if i % 40 == 39:
            shown = ", ".join(f"{n} {float(v):.3f}" for n, v in zip(names, history[-1]))
            print(f"[{epoch}/{opt.niter}][{i}/{len(order)}] {shown}", flush=True)
    if epoch % 20 == 0:
        torch.save(averaged.state_dict(), os.path.join(opt.out, "netG.pt"))
