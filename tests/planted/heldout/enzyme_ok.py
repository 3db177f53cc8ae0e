#!/usr/bin/env python
"""Enzyme class (EC first digit) from an amino-acid sequence."""

import argparse, math, time
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torch.nn.utils.rnn import pad_sequence

AMINO = 20
GAP = 0


class Enzymes(Dataset):
    def __init__(self, n=7200, seed=5):
        rng = np.random.default_rng(seed)
        size = np.clip(np.exp(rng.normal(math.log(50), 0.8, n)), 16, 480).astype(int)
        self.label = rng.integers(0, 7, n)
        self.seqs = [torch.from_numpy(rng.integers(1, AMINO + 1, s)) for s in size]
        self.size = size

    def __len__(self):
        return len(self.seqs)

    def __getitem__(self, i):
        return self.seqs[i], int(self.label[i])


def to_batch(items):
    seqs, labels = zip(*items)
    tokens = pad_sequence(seqs, batch_first=True, padding_value=GAP)
    return {"tokens": tokens, "mask": tokens.eq(GAP), "ec": torch.tensor(labels)}


class EnzymeNet(nn.Module):
    def __init__(self, d=96, heads=4, layers=2):
        super().__init__()
        self.emb = nn.Embedding(AMINO + 1, d, padding_idx=GAP)
        self.pos = nn.Embedding(512, d)
        layer = nn.TransformerEncoderLayer(d, heads, 192, dropout=0.1, batch_first=True)
        self.enc = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.cls = nn.Linear(d, 7)

    def forward(self, tokens, mask):
        h = self.emb(tokens) + self.pos.weight[: tokens.shape[1]]
        h = self.enc(h, src_key_padding_mask=mask)
        keep = (~mask).unsqueeze(-1).float()
        return self.cls((h * keep).sum(1) / keep.sum(1))


class LengthGroups:
    """batches of 12 out of a shuffled pool of 100 batches put in order of length"""

    def __init__(self, size, batch=12, pool=100):
        self.size, self.batch, self.pool = size, batch, pool
        self.rng = np.random.default_rng(0)

    def __len__(self):
        return len(self.size) // self.batch

    def __iter__(self):
        order = self.rng.permutation(len(self.size))
        groups = []
        for lo in range(0, len(order), self.batch * self.pool):
            part = order[lo : lo + self.batch * self.pool]
            part = part[np.argsort(self.size[part], kind="stable")]
            groups += [part[i : i + self.batch].tolist() for i in range(0, len(part) - self.batch + 1, self.batch)]
        self.rng.shuffle(groups)
        return iter(groups)


def loader_for(ds):
    return DataLoader(ds, batch_sampler=LengthGroups(ds.size), collate_fn=to_batch)


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--steps", type=int)
    ap.add_argument("--epochs", type=int, default=30)
    a = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    ds = Enzymes()
    loader = loader_for(ds)
    model = EnzymeNet()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.01)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, a.epochs * len(loader))
    k = 0
    t = time.time()
    for ep in range(a.epochs):
        total = 0.0
        for batch in loader:
            logits = model(batch["tokens"], batch["mask"])
            loss = nn.functional.cross_entropy(logits, batch["ec"], label_smoothing=0.05)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            sched.step()
            total += loss.item()
            k += 1
            if a.steps and k == a.steps:
                print("%.4f s/step" % ((time.time() - t) / k))
                return
        print("epoch", ep, "loss", round(total / len(loader), 4), flush=True)


if __name__ == "__main__":
    main()
