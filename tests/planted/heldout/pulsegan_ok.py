"""Wasserstein GAN that learns to draw detector pulses.

Two networks, a generator ("painter") and a critic.  The lab's inference card is not in this machine, so `Card`
stands in for it: results are computed at once, but the card's own clock is kept, with its queue, and whoever asks
for a number has to wait until the card would have got there.
"""

import argparse
import copy
import time

import numpy as np
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
MATMULS = {aten.mm, aten.addmm, aten.bmm}
VIEWS = {aten.t, aten.view, aten.detach, aten.expand, aten.transpose, aten.slice, aten.alias, aten._unsafe_view}


class Card(TorchDispatchMode):
    def __init__(self, matmul=450e-6, other=12e-6, queue=0.060):
        super().__init__()
        self.matmul, self.other, self.queue = matmul, other, queue
        self.until = time.perf_counter()

    def wait(self, slack=0.0):
        rest = self.until - time.perf_counter() - slack
        if rest > 0:
            time.sleep(rest)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        packet = func.overloadpacket
        if packet is aten._local_scalar_dense:
            self.wait()
        elif packet not in VIEWS:
            cost = self.matmul if packet in MATMULS else self.other
            self.until = max(self.until, time.perf_counter()) + cost
            self.wait(self.queue)
        return out


def pulses(batch, rng, raw=4096, bins=64):
    """Endless stream of digitised pulses, integrated into `bins` bins."""
    t = np.arange(raw) / raw
    while True:
        onset = rng.uniform(0.1, 0.4, (batch, 1))
        decay = rng.uniform(8.0, 20.0, (batch, 1))
        tone = rng.uniform(3.0, 9.0, (batch, 1))
        x = np.sin(2 * np.pi * tone * t) * (t > onset) * (1 - decay * 0.03)
        x += 0.2 * rng.standard_normal((batch, raw))
        yield torch.from_numpy(x.reshape(batch, bins, raw // bins).mean(2).astype(np.float32))


class Net(nn.Module):
    def __init__(self, n_in, n_out, width=64, depth=8):
        super().__init__()
        sizes = [n_in] + [width] * (depth - 1) + [n_out]
        self.layers = nn.ModuleList([nn.Linear(a, b) for a, b in zip(sizes, sizes[1:])])

    def forward(self, h):
        for layer in self.layers[:-1]:
            h = nn.functional.leaky_relu(layer(h), 0.2)
        return self.layers[-1](h)


def train(args):
    torch.manual_seed(args.seed)
    stream = pulses(args.batch, np.random.default_rng(args.seed))
    painter, critic = Net(16, 64), Net(64, 1)
    smooth = copy.deepcopy(painter).requires_grad_(False)
    opt_p = torch.optim.RMSprop(painter.parameters(), lr=args.lr)
    opt_c = torch.optim.RMSprop(critic.parameters(), lr=args.lr)
    history = []

    with Card() as card:
        for epoch in range(args.epochs):
            began = time.perf_counter()
            for _ in range(args.steps):
                real = next(stream)

                # critic
                critic.requires_grad_(True)
                with torch.no_grad():
                    fake = painter(torch.randn(args.batch, 16))
                score = critic(torch.cat([real, fake]))
                real_score, fake_score = score[: args.batch].mean(), score[args.batch :].mean()
                loss_c = fake_score - real_score
                opt_c.zero_grad()
                loss_c.backward()
                nn.utils.clip_grad_norm_(critic.parameters(), 5.0)
                opt_c.step()
                for p in critic.parameters():
                    p.data.clamp_(-0.1, 0.1)

                # painter
                critic.requires_grad_(False)
                loss_p = -critic(painter(torch.randn(args.batch, 16))).mean()
                history.append(torch.stack([-loss_c.detach(), loss_p.detach()]))
                opt_p.zero_grad()
                loss_p.backward()
                nn.utils.clip_grad_norm_(painter.parameters(), 5.0)
                opt_p.step()
                with torch.no_grad():
                    for s, p in zip(smooth.parameters(), painter.parameters()):
                        s.lerp_(p, 0.02)
            mean = torch.stack(history[-args.steps :]).mean(0)
            distance, loss = mean[0].item(), mean[1].item()
            drift = (next(smooth.parameters()) - next(painter.parameters())).detach().abs().max().item()
            if not np.isfinite(distance):
                raise FloatingPointError("loss left the finite numbers")
            took = time.perf_counter() - began
            print(
                f"epoch {epoch} distance {distance:.4f} painter loss {loss:.4f} drift {drift:.4f} ({took:.1f} s)",
                flush=True,
            )
        card.wait()


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=8)
    p.add_argument("--steps", type=int, default=150)
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--lr", type=float, default=2e-4)
    p.add_argument("--seed", type=int, default=5)
    train(p.parse_args())
