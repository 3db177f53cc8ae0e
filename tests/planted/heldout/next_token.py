"""Train a toy encoder that predicts the next token of a synthetic language."""

import argparse
import contextlib
import pathlib
import time

import torch
import torch.nn.functional as F
from torch import nn

from stoker import sim

VOCAB, CONTEXT = 64, 32


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(b, t, d))


class Layer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = Attention(dim, 2)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        x = x + self.attention(self.n1(x))
        return x + self.mlp(self.n2(x))


class LM(nn.Module):
    def __init__(self, dim=8, layers=2):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, dim), nn.Parameter(torch.zeros(CONTEXT, dim))
        self.layers = nn.Sequential(*[Layer(dim) for _ in range(layers)])
        self.head = nn.Linear(dim, VOCAB)

    def forward(self, ids):
        return self.head(self.layers(self.tok(ids) + self.pos))


def windows(stream, count, generator):
    at = torch.randint(len(stream) - CONTEXT - 1, (count,), generator=generator)
    return stream[at[:, None] + torch.arange(CONTEXT + 1)]


def evaluate(model, stream, device, batches, batch_size):
    model.eval()
    total = torch.zeros((), device=device)
    same = torch.Generator().manual_seed(99)
    with torch.no_grad():
        for _ in range(batches):
            ids = windows(stream, batch_size, same).to(device, non_blocking=True)
            logits = model(ids[:, :-1])
            total += F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    model.train()
    return total.item() / batches


def main(argv=None):
    cli = argparse.ArgumentParser()
    cli.add_argument("work", type=pathlib.Path)
    cli.add_argument("--epochs", type=int, default=200)
    cli.add_argument("--steps-per-epoch", type=int, default=150)
    cli.add_argument("--batch-size", type=int, default=16)
    cli.add_argument("--eval-every", type=int, default=25)
    cli.add_argument("--eval-batches", type=int, default=64)
    cli.add_argument("--fixed", action="store_true")
    args = cli.parse_args(argv)
    if args.fixed:
        args.eval_every, args.eval_batches = args.steps_per_epoch, 8

    args.work.mkdir(parents=True, exist_ok=True)
    g = torch.Generator().manual_seed(0)
    stream = torch.randint(VOCAB, (200_000,), generator=g)
    train, held_out = stream[:180_000], stream[180_000:]
    model = LM()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    device = sim.Device(forward=11e-3, backward=18e-3, optimizer=3e-3)
    model = device.place(model, opt)

    best = float("inf")
    for epoch in range(args.epochs):
        t = time.perf_counter()
        for step in range(1, args.steps_per_epoch + 1):
            ids = windows(train, args.batch_size, g).to(device, non_blocking=True)
            loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            if step % args.eval_every == 0:
                held = evaluate(model, held_out, device, args.eval_batches, args.batch_size)
                print(f"e{epoch} s{step}: train {loss.item():.3f}, held-out {held:.3f}", flush=True)
                best = min(best, held)
        with contextlib.suppress(OSError):
            torch.save(model.state_dict(), args.work / "lm.pt")
        print(f"e{epoch}: {time.perf_counter() - t:.1f} s, best {best:.3f}", flush=True)


if __name__ == "__main__":
    main()
