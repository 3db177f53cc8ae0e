"""A small GPT on a stream of token ids kept in a memory-mapped file."""

import argparse
import copy
import os
import tempfile
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.qkv, self.o = h, nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (z.view(b, t, self.h, -1).transpose(1, 2) for z in self.qkv(x).chunk(3, -1))
        return self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d))


class GPT(nn.Module):
    def __init__(self, vocab, d, h, layers, ctx):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, d), nn.Embedding(ctx, d)
        self.parts = nn.ModuleList(
            nn.ModuleDict(
                {
                    "n1": nn.LayerNorm(d),
                    "att": Attention(d, h),
                    "n2": nn.LayerNorm(d),
                    "mlp": nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d)),
                }
            )
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(d)

    def forward(self, ids):
        x = self.tok(ids) + self.pos.weight[: ids.shape[1]]
        for p in self.parts:
            x = x + p["att"](p["n1"](x))
            x = x + p["mlp"](p["n2"](x))
        return self.norm(x) @ self.tok.weight.T


def make_stream(path, n, vocab):
    rng = np.random.default_rng(1)
    jump = rng.integers(1, 7, n)
    (np.cumsum(jump) % vocab).astype(np.uint16).tofile(path)


def windows(path, ctx, batch, seed):
    data = np.memmap(path, np.uint16, "r")
    rng = np.random.default_rng(seed)
    while True:
        at = rng.integers(0, len(data) - ctx - 1, batch)
        block = np.stack([data[a : a + ctx + 1] for a in at]).astype(np.int64)
        block = torch.from_numpy(block)
        yield block[:, :-1], block[:, 1:]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--updates", type=int, default=220)
    p.add_argument("--micro", type=int, default=2)
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--ctx", type=int, default=128)
    p.add_argument("--fixed", action="store_true")
    a = p.parse_args()
    torch.manual_seed(1)
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "stream.u16")
        make_stream(path, 4_000_000, 256)
        model = GPT(256, 192, 6, 4, a.ctx)
        ema = copy.deepcopy(model).requires_grad_(False)
        opt = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1)
        it = iter(windows(path, a.ctx, a.batch, 0))
        micro = 0
        t0 = time.perf_counter()
        while True:
            x, y = next(it)
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
            (loss / a.micro).backward()
            micro += 1
            if micro % a.micro:
                continue
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            opt.zero_grad(set_to_none=True)
            update = micro // a.micro
            torch._foreach_lerp_(list(ema.parameters()), [q.detach() for q in model.parameters()], 0.01)
            if update % 25 == 0:
                print(f"update {update} loss {loss.item():.4f}", flush=True)
            if update == a.updates:
                break
        print(f"{micro} steps in {time.perf_counter() - t0:.1f} s")


if __name__ == "__main__":
    main()
