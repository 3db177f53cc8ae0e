"""Next-event model over server log templates (a small causal transformer); log keys are already ids in one long array."""

import argparse
import math
import os
import tempfile
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

VOCAB, CTX = 300, 64


def log_keys(n):
    rng = np.random.default_rng(0)
    nxt = rng.integers(0, VOCAB, (VOCAB, 4))
    keys = np.zeros(n, np.int64)
    pick = rng.integers(0, 4, n)
    for t in range(1, n):
        keys[t] = nxt[keys[t - 1], pick[t]]
    return torch.from_numpy(keys)


class Windows(Dataset):
    def __init__(self, keys):
        self.keys = keys

    def __len__(self):
        return (len(self.keys) - 1) // CTX

    def __getitem__(self, i):
        w = self.keys[i * CTX : i * CTX + CTX + 1]
        return w[:-1], w[1:]


class LogLM(nn.Module):
    def __init__(self, d=128, heads=4, layers=2):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, d), nn.Parameter(torch.randn(CTX, d) / math.sqrt(d))
        layer = nn.TransformerEncoderLayer(d, heads, 4 * d, dropout=0.0, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(d, VOCAB)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CTX))

    def forward(self, x):
        return self.out(self.enc(self.tok(x) + self.pos, mask=self.mask, is_causal=True))


class Trainer:
    def __init__(self, model, loader, folder, max_steps):
        self.model, self.loader, self.folder, self.max_steps = model, loader, folder, max_steps
        self.opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
        self.lossf = nn.CrossEntropyLoss()
        self.step = 0

    def run(self):
        start = time.time()
        while self.step < self.max_steps:
            for x, y in self.loader:
                self.opt.zero_grad(set_to_none=True)
                loss = self.lossf(self.model(x).flatten(0, 1), y.flatten())
                loss.backward()
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.opt.step()
                self.step += 1
                if self.step % 50 == 0:
                    print(
                        f"{self.step:5d} loss {loss.item():.3f} {self.step / (time.time() - start):.2f} it/s",
                        flush=True,
                    )
                if self.step % 200 == 0:
                    torch.save(self.model.state_dict(), os.path.join(self.folder, "log_lm.pt"))
                if self.step == self.max_steps:
                    break


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=1100)
    a = ap.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        loader = DataLoader(Windows(log_keys(400_000)), batch_size=32, shuffle=True, drop_last=True)
        Trainer(LogLM(), loader, folder, a.steps).run()
