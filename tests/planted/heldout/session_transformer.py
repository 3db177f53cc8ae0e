"""Predict from a shop session (a list of page ids) whether it ends in a purchase. Sessions are in gzipped JSON lines."""

import argparse
import gzip
import json
import os
import random
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

PAGES, MAX_EVENTS = 900, 256


def generate(folder, n=1600):
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "sessions.jsonl.gz")
    if os.path.exists(path):
        return path
    rng = np.random.default_rng(12)
    with gzip.open(path + ".new", "wt") as f:
        for _ in range(n):
            length = int(np.clip(rng.lognormal(3.0, 0.8), 4, MAX_EVENTS))
            pages = rng.integers(1, PAGES, length).tolist()
            f.write(json.dumps({"pages": pages, "bought": int(sum(p < 60 for p in pages) > length * 0.07)}) + "\n")
    os.replace(path + ".new", path)
    return path


class Sessions(Dataset):
    def __init__(self, path):
        self.items = []
        with gzip.open(path, "rt") as f:
            for line in f:
                d = json.loads(line)
                self.items.append((torch.tensor(d["pages"]), float(d["bought"])))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


class Collate:
    def __init__(self, length=None):
        self.length = length

    def __call__(self, items):
        width = self.length or max(len(s) for s, _ in items)
        ids = torch.zeros(len(items), width, dtype=torch.long)
        for row, (s, _) in zip(ids, items):
            row[: len(s)] = s
        return ids, torch.tensor([y for _, y in items])


class ByLength:
    def __init__(self, lengths, batch):
        self.lengths, self.batch = lengths, batch

    def __len__(self):
        return len(self.lengths) // self.batch

    def __iter__(self):
        order = sorted(range(len(self.lengths)), key=lambda i: (self.lengths[i], random.random()))
        chunks = [order[k * self.batch : (k + 1) * self.batch] for k in range(len(self))]
        random.shuffle(chunks)
        return iter(chunks)


class SessionModel(nn.Module):
    def __init__(self, dim=64, layers=2):
        super().__init__()
        self.page = nn.Embedding(PAGES, dim, padding_idx=0)
        self.when = nn.Embedding(MAX_EVENTS, dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 2 * dim, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(dim, 1)

    def forward(self, ids):
        empty = ids == 0
        h = self.page(ids) + self.when(torch.arange(ids.shape[1]))
        h = self.encoder(h, src_key_padding_mask=empty).masked_fill(empty[..., None], 0)
        return self.out(h.sum(1) / (~empty).sum(1, keepdim=True)).squeeze(1)


class Trainer:
    def __init__(self, args):
        data = Sessions(generate(args.data))
        if args.fixed:
            self.loader = DataLoader(
                data, batch_sampler=ByLength([len(s) for s, _ in data.items], args.batch), collate_fn=Collate()
            )
        else:
            self.loader = DataLoader(data, args.batch, shuffle=True, drop_last=True, collate_fn=Collate(MAX_EVENTS))
        self.model = SessionModel()
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=5e-4)

    def run_epoch(self):
        n, total = 0, 0.0
        for k, (ids, y) in enumerate(self.loader):
            loss = nn.functional.binary_cross_entropy_with_logits(self.model(ids), y)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            n += len(y)
            total += loss.item()
        return n, total / (k + 1)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("data")
    ap.add_argument("--epochs", type=int, default=200)
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    trainer = Trainer(args)
    for epoch in range(args.epochs):
        t0 = time.time()
        n, loss = trainer.run_epoch()
        print(f"epoch {epoch} loss {loss:.4f} {n / (time.time() - t0):.1f} samples/s", flush=True)
