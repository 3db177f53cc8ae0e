#!/usr/bin/env python
# purchase prediction from click sessions (page id, dwell seconds, price seen, hour of day)
import argparse, time
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import Dataset, DataLoader, random_split

p = argparse.ArgumentParser()
p.add_argument("--epochs", type=int, default=10)
p.add_argument("--bs", type=int, default=48)
p.add_argument("--sessions", type=int, default=3000)
p.add_argument("--fixed", action="store_true", help="vectorised collate")


class Sessions(Dataset):
    def __init__(self, n, seed=0):
        r = np.random.default_rng(seed)
        lens = r.integers(185, 200, n)
        self.items = []
        for L in lens:
            page = r.integers(1, 4000, L)
            dwell = r.exponential(12, L).astype(np.float32)
            price = r.lognormal(3, 1, L).astype(np.float32)
            hour = r.integers(0, 24, L)
            self.items.append((page, dwell, price, hour, float(dwell.sum() > L * 12)))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate(samples):
    """Pad to the longest session and scale dwell/price per session."""
    T = max(len(s[0]) for s in samples)
    B = len(samples)
    page = torch.zeros(B, T, dtype=torch.long)
    hour = torch.zeros(B, T, dtype=torch.long)
    feats = torch.zeros(B, T, 2)
    mask = torch.zeros(B, T)
    for b, (pg, dw, pr, hr, _) in enumerate(samples):
        dmax, pmax = max(dw), max(pr)
        for t in range(len(pg)):
            page[b, t] = int(pg[t])
            hour[b, t] = int(hr[t])
            feats[b, t, 0] = float(dw[t] / dmax)
            feats[b, t, 1] = float(pr[t] / pmax)
            mask[b, t] = 1.0
    return page, hour, feats, mask, torch.tensor([s[4] for s in samples])


def collate_fast(samples):
    T, B = max(len(s[0]) for s in samples), len(samples)
    page, hour = np.zeros((B, T), np.int64), np.zeros((B, T), np.int64)
    feats, mask = np.zeros((B, T, 2), np.float32), np.zeros((B, T), np.float32)
    for b, (pg, dw, pr, hr, _) in enumerate(samples):
        n = len(pg)
        page[b, :n], hour[b, :n], mask[b, :n] = pg, hr, 1.0
        feats[b, :n, 0], feats[b, :n, 1] = dw / dw.max(), pr / pr.max()
    return (*map(torch.from_numpy, (page, hour, feats, mask)), torch.tensor([s[4] for s in samples]))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.page, self.hour = nn.Embedding(4000, 24), nn.Embedding(24, 6)
        self.conv = nn.Conv1d(32, 32, 5, padding=2)
        self.head = nn.Linear(32, 1)

    def forward(self, page, hour, feats, mask):
        h = torch.cat([self.page(page), self.hour(hour), feats], -1).transpose(1, 2)
        h = F.relu(self.conv(h)) * mask.unsqueeze(1)
        return self.head(h.sum(-1) / mask.sum(-1, keepdim=True)).squeeze(-1)


@torch.no_grad()
def evaluate(net, loader):
    net.eval()
    hit = tot = 0
    for *x, y in loader:
        hit += ((net(*x) > 0).float() == y).sum().item()
        tot += len(y)
    net.train()
    return hit / tot


def run(a):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    train, val = random_split(Sessions(a.sessions), [a.sessions - 96, 96])
    fn = collate_fast if a.fixed else collate
    tl = DataLoader(train, a.bs, shuffle=True, num_workers=2, collate_fn=fn, persistent_workers=True)
    vl = DataLoader(val, a.bs, collate_fn=collate_fast)
    net = Net()
    opt = torch.optim.AdamW(net.parameters(), 1e-3)
    for e in range(a.epochs):
        t = time.perf_counter()
        for page, hour, feats, mask, y in tl:
            loss = F.binary_cross_entropy_with_logits(net(page, hour, feats, mask), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        dt = time.perf_counter() - t
        print(
            f"[{e}] {dt:.1f}s {1e3 * dt / len(tl):.1f} ms/step loss={loss.item():.4f} val={evaluate(net, vl):.3f}",
            flush=True,
        )


if __name__ == "__main__":
    run(p.parse_args())
