"""Routing of support tickets to queues (text classification, encoder from scratch)."""

import argparse
import json
import os
import time

import numpy as np
import torch
import torch.nn as nn
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

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


def load_ids(limit):
    """All tickets as one (N, limit) matrix; every body is longer than `limit` pieces."""
    cache = f"{DATA}/ids_{limit}.npz"
    if not os.path.exists(cache):
        with open(f"{DATA}/vocab.txt") as f:
            vocab = {w: i for i, w in enumerate(f.read().split("\n"))}
        tok = Tokenizer(WordPiece(vocab, unk_token="[UNK]"))
        tok.normalizer = BertNormalizer(lowercase=True)
        tok.pre_tokenizer = BertPreTokenizer()
        tok.enable_truncation(limit - 2)
        tok.enable_padding(length=limit - 2)
        with open(f"{DATA}/tickets.jsonl") as f:
            rows = [json.loads(l) for l in f]
        enc = tok.encode_batch([r["body"] for r in rows])
        x = np.full((len(rows), limit), vocab["[SEP]"], dtype=np.int32)
        x[:, 0] = vocab["[CLS]"]
        x[:, 1:-1] = [e.ids for e in enc]
        np.savez(cache, x=x, y=np.array([r["queue"] for r in rows]))
    z = np.load(cache)
    return torch.from_numpy(z["x"]), torch.from_numpy(z["y"])


def batches(x, y, size):
    order = torch.randperm(len(x))
    for k in range(0, len(x) - size + 1, size):
        sel = order[k : k + size]
        yield x[sel].long(), y[sel]


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
    ids, queues = load_ids(a.limit)
    model = Encoder(n_vocab, a.limit)
    opt = torch.optim.AdamW(model.parameters(), lr=a.lr)
    crit = nn.CrossEntropyLoss()
    step, t0, seen = 0, time.time(), 0
    for ep in range(a.epochs):
        for x, y in batches(ids, queues, a.batch):
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
