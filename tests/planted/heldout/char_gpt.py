"""A small character-level GPT on a text file, endless iterable dataset, gradient accumulation over two batches."""

import argparse
import math
import os
import random
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

CTX = 96


def text_file(folder):
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "book.txt")
    if not os.path.exists(path):
        r = random.Random(77)
        lex = ["".join(r.choice("etaoinshrdlu") for _ in range(r.randint(2, 8))) for _ in range(400)]
        with open(path, "w") as f:
            for _ in range(12000):
                f.write(" ".join(r.choices(lex, k=r.randint(4, 14))) + ".\n")
    return path


class Chunks(IterableDataset):
    """Yields whole batches of random chunks."""

    def __init__(self, ids, batch, steps):
        self.ids, self.batch, self.steps = ids, batch, steps

    def __iter__(self):
        rng = np.random.default_rng()
        for _ in range(self.steps):
            s = rng.integers(0, len(self.ids) - CTX - 1, self.batch)[:, None]
            block = torch.from_numpy(self.ids[s + np.arange(CTX + 1)]).long()
            yield block[:, :-1], block[:, 1:]


class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (y.view(b, t, self.h, d // self.h).transpose(1, 2) for y in self.qkv(self.n1(x)).chunk(3, -1))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.n2(x))


class GPT(nn.Module):
    def __init__(self, vocab, d=160, layers=3):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, d), nn.Embedding(CTX, d)
        self.blocks = nn.Sequential(*[Block(d, 5) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, vocab)

    def forward(self, x):
        return self.head(self.norm(self.blocks(self.tok(x) + self.pos(torch.arange(x.shape[1])))))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("data")
    ap.add_argument("--epochs", type=int, default=300)
    ap.add_argument("--steps", type=int, default=30)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    with open(text_file(args.data)) as f:
        text = f.read()
    chars = sorted(set(text))
    lut = {c: i for i, c in enumerate(chars)}
    ids = np.fromiter((lut[c] for c in text), np.uint8, len(text))
    loader = DataLoader(Chunks(ids, 12, args.steps), batch_size=None)
    model = GPT(len(chars))
    opt = torch.optim.AdamW(model.parameters(), 6e-4, betas=(0.9, 0.95))
    for epoch in range(args.epochs):
        t, n = time.time(), 0
        for group in opt.param_groups:
            group["lr"] = 6e-4 * 0.5 * (1 + math.cos(math.pi * epoch / args.epochs))
        for step, (x, y) in enumerate(loader):
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten()) / 2
            loss.backward()
            if step % 2:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                opt.step()
                opt.zero_grad()
            n += len(x)
        print(f"epoch {epoch} loss {2 * loss.item():.3f} {n / (time.time() - t):.1f} samples/s", flush=True)
        if epoch % 5 == 4:
            torch.save(model.state_dict(), os.path.join(args.data, "ckpt.pt"))


if __name__ == "__main__":
    main()
