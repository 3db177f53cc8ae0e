"""Masked residue model on peptides and proteins."""

import argparse
import math
import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

PAD, MASK, FIRST, RESIDUES = 0, 1, 2, 20


@dataclass
class Hyper:
    dim: int = 64
    heads: int = 4
    depth: int = 2
    batch: int = 16
    accumulate: int = 2
    lr: float = 1e-3


class Proteins(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        lengths = torch.exp(3.4 + 0.9 * torch.randn(n, generator=g)).long().clamp(8, 400)
        self.seqs = [FIRST + torch.randint(0, RESIDUES, (int(k),), generator=g) for k in lengths]

    def __len__(self):
        return len(self.seqs)

    def __getitem__(self, i):
        return self.seqs[i]


def mask_batch(seqs):
    target = pad_sequence(seqs, batch_first=True, padding_value=PAD)
    hide = (torch.rand(target.shape) < 0.15) & (target != PAD)
    return {"ids": target.masked_fill(hide, MASK), "target": target, "hide": hide}


class ByLength:
    """Batches of similar length: sort inside pools of many batches, then shuffle the batches."""

    def __init__(self, lengths, batch, pool=40):
        self.lengths, self.batch, self.pool = torch.tensor(lengths), batch, pool

    def __len__(self):
        return math.ceil(len(self.lengths) / self.batch)

    def __iter__(self):
        batches = []
        for part in torch.randperm(len(self.lengths)).split(self.batch * self.pool):
            part = part[self.lengths[part].argsort()]
            batches += [b.tolist() for b in part.split(self.batch)]
        for k in torch.randperm(len(batches)).tolist():
            yield batches[k]


class Layer(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x, allowed):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.n2(x))


class Model(nn.Module):
    def __init__(self, h):
        super().__init__()
        self.emb = nn.Embedding(FIRST + RESIDUES, h.dim, padding_idx=PAD)
        self.pos = nn.Embedding(400, h.dim)
        self.layers = nn.ModuleList(Layer(h.dim, h.heads) for _ in range(h.depth))
        self.out = nn.Linear(h.dim, FIRST + RESIDUES)

    def forward(self, ids):
        allowed = (ids != PAD)[:, None, None, :]
        x = self.emb(ids) + self.pos(torch.arange(ids.shape[1]))
        for layer in self.layers:
            x = layer(x, allowed)
        return self.out(x)


def fit(args):
    torch.manual_seed(0)
    h = Hyper()
    data = Proteins(args.proteins, 0)
    if args.fixed:
        loader = DataLoader(data, batch_sampler=ByLength([len(s) for s in data.seqs], h.batch), collate_fn=mask_batch)
    else:
        loader = DataLoader(data, batch_size=h.batch, shuffle=True, collate_fn=mask_batch)
    model = Model(h)
    opt = torch.optim.AdamW(model.parameters(), lr=h.lr, betas=(0.9, 0.98))
    step, t0 = 0, time.perf_counter()
    for epoch in range(args.epochs):
        for batch in loader:
            logits = model(batch["ids"])
            loss = F.cross_entropy(logits[batch["hide"]], batch["target"][batch["hide"]])
            (loss / h.accumulate).backward()
            step += 1
            if step % h.accumulate == 0:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                opt.step()
                opt.zero_grad()
            if step % 100 == 0:
                print(f"epoch {epoch} step {step} perplexity {loss.exp().item():.2f}", flush=True)
            if step == args.steps:
                break
        if step == args.steps:
            break
    print(f"{step} steps in {time.perf_counter() - t0:.1f} s")


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--proteins", type=int, default=4800)
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--steps", type=int, default=0)
    ap.add_argument("--fixed", action="store_true")
    fit(ap.parse_args())
