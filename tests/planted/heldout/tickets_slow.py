"""Routing of support tickets to queues (text classification, encoder from scratch)."""

import argparse
import json
import os
import time
import unicodedata

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

DATA = "data_tickets"
SYL = [a + b for a in "bcdfghklmnprstvw" for b in ("a", "e", "i", "o", "u", "an", "er", "is")]


def prepare():
    os.makedirs(DATA, exist_ok=True)
    if os.path.exists(f"{DATA}/tickets.jsonl"):
        return
    rng = np.random.default_rng(11)
    words = ["".join(SYL[j] for j in rng.integers(0, len(SYL), rng.integers(1, 5))) for _ in range(6000)]
    vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"] + list(".,:;!?()-0123456789abcdefghijklmnopqrstuvwxyz")
    vocab += SYL + ["##" + s for s in SYL] + ["##" + c for c in "abcdefghijklmnopqrstuvwxyz0123456789"]
    vocab += words[:1500]
    vocab = list(dict.fromkeys(vocab))
    with open(f"{DATA}/vocab.txt", "w") as f:
        f.write("\n".join(vocab))
    p = 1.0 / np.arange(1, 6001) ** 0.8
    p /= p.sum()
    with open(f"{DATA}/tickets.tmp", "w") as f:
        for _ in range(2400):
            y = int(rng.integers(8))
            ids = (rng.choice(6000, size=int(rng.integers(480, 700)), p=p) + 37 * y) % 6000
            toks = [words[j] for j in ids]
            for k in range(9, len(toks), 11):
                toks[k] = toks[k].capitalize() + ("," if k % 2 else ".")
            f.write(json.dumps({"body": " ".join(toks), "queue": y}) + "\n")
    os.rename(f"{DATA}/tickets.tmp", f"{DATA}/tickets.jsonl")


class Vocab:
    def __init__(self, path, limit):
        with open(path) as f:
            self.ids = {w: i for i, w in enumerate(f.read().split("\n"))}
        self.limit = limit

    def _clean(self, text):
        out = []
        for ch in text:
            cat = unicodedata.category(ch)
            if cat.startswith("C"):
                continue
            out.append(" " if cat == "Zs" else ch)
        return "".join(out)

    def _split_punct(self, word):
        pieces, new = [], True
        for ch in word:
            if unicodedata.category(ch).startswith("P"):
                pieces.append([ch])
                new = True
            else:
                if new:
                    pieces.append([])
                new = False
                pieces[-1].append(ch)
        return ["".join(p) for p in pieces]

    def _basic(self, text):
        words = []
        for w in self._clean(text).strip().split():
            w = unicodedata.normalize("NFD", w.lower())
            w = "".join(c for c in w if unicodedata.category(c) != "Mn")
            words.extend(self._split_punct(w))
        return words

    def _pieces(self, word):
        start, out = 0, []
        while start < len(word):
            end, cur = len(word), None
            while start < end:
                sub = word[start:end] if start == 0 else "##" + word[start:end]
                if sub in self.ids:
                    cur = sub
                    break
                end -= 1
            if cur is None:
                return ["[UNK]"]
            out.append(cur)
            start = end
        return out

    def encode(self, text):
        toks = ["[CLS]"]
        for w in self._basic(text):
            toks.extend(self._pieces(w))
        toks = toks[: self.limit - 1] + ["[SEP]"]
        return [self.ids[t] for t in toks]


class Tickets(Dataset):
    def __init__(self, path, vocab):
        with open(path) as f:
            self.rows = [json.loads(l) for l in f]
        self.vocab = vocab

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        r = self.rows[i]
        return torch.tensor(self.vocab.encode(r["body"])), r["queue"]


class Encoder(nn.Module):
    def __init__(self, vocab, limit, d=128, layers=2):
        super().__init__()
        self.tok = nn.Embedding(vocab, d)
        self.pos = nn.Parameter(torch.randn(limit, d) * 0.02)
        layer = nn.TransformerEncoderLayer(d, 4, 4 * d, 0.1, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(d, 8)

    def forward(self, x):
        return self.head(self.enc(self.tok(x) + self.pos).mean(1))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=20)
    ap.add_argument("--batch", type=int, default=24)
    ap.add_argument("--limit", type=int, default=96)
    ap.add_argument("--lr", type=float, default=3e-4)
    a = ap.parse_args()
    prepare()
    torch.manual_seed(1)
    with open(f"{DATA}/vocab.txt") as f:
        n_vocab = len(f.read().split("\n"))
    ds = Tickets(f"{DATA}/tickets.jsonl", Vocab(f"{DATA}/vocab.txt", a.limit))
    loader = DataLoader(ds, a.batch, shuffle=True, num_workers=2, drop_last=True, persistent_workers=True)
    model = Encoder(n_vocab, a.limit)
    opt = torch.optim.AdamW(model.parameters(), lr=a.lr)
    crit = nn.CrossEntropyLoss()
    step, t0, seen = 0, time.time(), 0
    for ep in range(a.epochs):
        for x, y in loader:
            opt.zero_grad()
            loss = crit(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            step += 1
            seen += len(y)
            if step % 20 == 0:
                dt = time.time() - t0
                print(f"ep {ep} step {step} loss {loss.item():.3f} {seen / dt:.1f} samples/s", flush=True)
                t0, seen = time.time(), 0


if __name__ == "__main__":
    main()
