"""Contrastive pre-training on small crops, two views, NT-Xent."""

import time
import torch
from torch import nn, optim
import torch.nn.functional as F


def augment(x):
    if torch.rand(()) < 0.5:
        x = x.flip(-1)
    return (x + 0.1 * torch.randn_like(x)) * (0.8 + 0.4 * torch.rand(x.size(0), 1, 1, 1))


def nt_xent(z1, z2, tau=0.2):
    z = F.normalize(torch.cat([z1, z2]), dim=1)
    n = z1.size(0)
    sim = z @ z.T / tau
    sim = sim.masked_fill(torch.eye(2 * n, dtype=torch.bool), float("-inf"))
    return F.cross_entropy(sim, torch.arange(2 * n).roll(n))


class Encoder(nn.Module):
    def __init__(self, width=32, out=48):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, width, 3, 1, 1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, 1, 1),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
        )
        self.proj = nn.Sequential(nn.Flatten(), nn.Linear(8 * width, 128), nn.ReLU(), nn.Linear(128, out))

    def forward(self, x):
        return self.proj(self.body(x))


class Pretrain:
    def __init__(self, images, bs=14, steps=300):
        self.images, self.bs, self.steps = images, bs, steps
        self.enc = Encoder()
        self.opt = optim.SGD(self.enc.parameters(), 0.03, momentum=0.9, weight_decay=1e-4)
        self.sched = optim.lr_scheduler.CosineAnnealingLR(self.opt, steps)

    def run(self):
        start = time.time()
        for step in range(1, self.steps + 1):
            x = self.images[torch.randint(len(self.images), (self.bs,))].float() / 255
            loss = nt_xent(self.enc(augment(x)), self.enc(augment(x)))
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            self.sched.step()
            if step % 20 == 0:
                print(f"{step:4d} {loss.item():.3f} {step / (time.time() - start):.2f} steps/s", flush=True)


if __name__ == "__main__":
    torch.manual_seed(0)
    Pretrain(torch.randint(0, 255, (2000, 3, 32, 32), dtype=torch.uint8)).run()
