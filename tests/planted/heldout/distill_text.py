"""Distil a four-layer teacher into a two-layer student on token sequences held in memory."""

import argparse
import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

VOCAB, LEN, CLASSES = 800, 48, 8


def tokens(folder, n=640):
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "tokens.npz")
    if not os.path.exists(path):
        rng = np.random.default_rng(6)
        y = rng.integers(0, CLASSES, n)
        x = rng.integers(0, VOCAB, (n, LEN))
        x[:, ::5] = (y * 90)[:, None] + rng.integers(0, 90, (n, len(range(0, LEN, 5))))
        np.savez(path, x=x, y=y)
    z = np.load(path)
    return torch.from_numpy(z["x"]), torch.from_numpy(z["y"])


class Encoder(nn.Module):
    def __init__(self, dim, layers):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, dim)
        self.pos = nn.Parameter(torch.randn(LEN, dim) * 0.02)
        self.enc = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(dim, 4, 4 * dim, dropout=0.1, batch_first=True),
            layers,
            enable_nested_tensor=False,
        )
        self.head = nn.Linear(dim, CLASSES)

    def forward(self, x):
        return self.head(self.enc(self.emb(x) + self.pos).mean(1))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("data")
    ap.add_argument("--epochs", type=int, default=300)
    ap.add_argument("--temperature", type=float, default=2.0)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(0)
    x, y = tokens(args.data)
    loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True, drop_last=True)
    teacher, student = Encoder(192, 4).eval().requires_grad_(False), Encoder(160, 2)
    opt = torch.optim.AdamW(student.parameters(), lr=3e-4)
    T = args.temperature
    step = 0
    for epoch in range(args.epochs):
        t, n = time.time(), 0
        for xb, yb in loader:
            with torch.no_grad():
                soft = F.softmax(teacher(xb) / T, 1)
            out = student(xb)
            loss = 0.3 * F.cross_entropy(out, yb) + 0.7 * T * T * F.kl_div(
                F.log_softmax(out / T, 1), soft, reduction="batchmean"
            )
            opt.zero_grad()
            loss.backward()
            opt.step()
            n += len(xb)
            step += 1
            if step % 20 == 0:
                print(f"  step {step} loss {loss.item():.4f}")
        print(f"epoch {epoch} {n / (time.time() - t):.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
