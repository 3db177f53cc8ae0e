"""Removes shot noise from tomography phantoms.  Functional style: parameters are a plain dict, and the optimiser
(Lion, Chen et al. 2023) is a dozen lines of our own."""

import argparse
import time

import torch
from torch import nn
from torch.func import functional_call, grad_and_value

SIDE = 48


def phantoms(count: int, generator: torch.Generator) -> torch.Tensor:
    axis = torch.linspace(-1, 1, SIDE)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    image = torch.zeros(count, SIDE, SIDE)
    for _ in range(4):
        cx, cy, rx, ry, tone = torch.rand(5, count, 1, 1, generator=generator)
        inside = ((x - cx * 1.4 + 0.7) / (0.15 + 0.5 * rx)) ** 2 + ((y - cy * 1.4 + 0.7) / (0.15 + 0.5 * ry)) ** 2 < 1
        image += inside * tone
    return image.unsqueeze(1)


def denoiser() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, stride=2, padding=1),
        nn.GELU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.GELU(),
        nn.Conv2d(64, 64, 3, padding=1),
        nn.GELU(),
        nn.Conv2d(64, 32, 3, padding=1),
        nn.GELU(),
        nn.Conv2d(32, 4, 3, padding=1),
        nn.PixelShuffle(2),
    )


def lion(params, grads, momentum, lr, beta1=0.9, beta2=0.99, decay=1e-4):
    fresh, moved = {}, {}
    for name, p in params.items():
        g, m = grads[name], momentum[name]
        direction = (beta1 * m + (1 - beta1) * g).sign()
        fresh[name] = p * (1 - lr * decay) - lr * direction
        moved[name] = beta2 * m + (1 - beta2) * g
    return fresh, moved


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps-per-epoch", type=int, default=100)
    ap.add_argument("--epochs", type=int, default=6)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--lr", type=float, default=2e-4)
    args = ap.parse_args()
    torch.manual_seed(13)
    generator = torch.Generator().manual_seed(14)

    clean = phantoms(4000, generator)
    net = denoiser()
    params = {name: p.detach().clone() for name, p in net.named_parameters()}
    momentum = {name: torch.zeros_like(p) for name, p in params.items()}

    def loss_of(params, noisy, target):
        return (functional_call(net, params, (noisy,)) - target).square().mean()

    step_of = grad_and_value(loss_of)
    for epoch in range(args.epochs):
        t0, total = time.time(), torch.zeros(())
        for _ in range(args.steps_per_epoch):
            target = clean[torch.randint(len(clean), (args.batch,), generator=generator)]
            noisy = target + 0.3 * torch.randn(target.shape, generator=generator)
            grads, loss = step_of(params, noisy, target)
            params, momentum = lion(params, grads, momentum, args.lr)
            total += loss
        print(f"epoch {epoch}: mse {total.item() / args.steps_per_epoch:.5f} ({time.time() - t0:.1f} s)", flush=True)


if __name__ == "__main__":
    main()
