"""Click prediction from reading histories: who opens which article."""

import sys
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stoker import sim

ARTICLES = 5000
MAX_LEN = 70
BATCH = 256


class Impressions(Dataset):
    def __init__(self, n, seed):
        rng = np.random.default_rng(seed)
        lengths = rng.integers(10, MAX_LEN + 1, n)
        ids = rng.integers(1, ARTICLES, int(lengths.sum()))
        dwell = rng.gamma(2.0, 10.0, int(lengths.sum())).astype(np.float32)
        cuts = np.cumsum(lengths)[:-1]
        self.history = np.split(ids, cuts)
        self.dwell = np.split(dwell, cuts)
        self.candidate = rng.integers(1, ARTICLES, n)
        self.clicked = rng.integers(0, 2, n)

    def __len__(self):
        return len(self.history)

    def __getitem__(self, i):
        return self.history[i], self.dwell[i], self.candidate[i], self.clicked[i]


def batch_impressions(samples):
    longest = max(len(s[0]) for s in samples)
    history = torch.zeros(len(samples), longest, dtype=torch.long)
    dwell = torch.zeros(len(samples), longest)
    for row, (ids, seconds, _, _) in enumerate(samples):
        for col in range(len(ids)):
            history[row, col] = int(ids[col])
            dwell[row, col] = float(seconds[col])
    candidate = torch.tensor([int(s[2]) for s in samples])
    clicked = torch.tensor([float(s[3]) for s in samples])
    return history, dwell, candidate, clicked


def batch_impressions_np(samples):
    lengths = np.array([len(s[0]) for s in samples])
    inside = np.arange(lengths.max())[None, :] < lengths[:, None]
    history = np.zeros(inside.shape, np.int64)
    dwell = np.zeros(inside.shape, np.float32)
    history[inside] = np.concatenate([s[0] for s in samples])
    dwell[inside] = np.concatenate([s[1] for s in samples])
    candidate = np.array([s[2] for s in samples])
    clicked = np.array([s[3] for s in samples], np.float32)
    return tuple(torch.from_numpy(a) for a in (history, dwell, candidate, clicked))


class Ranker(nn.Module):
    def __init__(self, dim=4):
        super().__init__()
        self.articles = nn.Embedding(ARTICLES, dim)
        self.user = nn.Linear(dim, dim)

    def forward(self, history, dwell, candidate):
        weight = torch.log1p(dwell).unsqueeze(-1)
        user = (self.articles(history) * weight).sum(1) / weight.sum(1).clamp(min=1)
        return (self.user(user) * self.articles(candidate)).sum(-1)


if __name__ == "__main__":
    fixed = "--fixed" in sys.argv
    torch.manual_seed(1)
    train = DataLoader(
        Impressions(25_600, 0),
        batch_size=BATCH,
        shuffle=True,
        num_workers=2,
        prefetch_factor=4,
        persistent_workers=True,
        collate_fn=batch_impressions_np if fixed else batch_impressions,
        drop_last=True,
    )
    model = Ranker()
    opt = torch.optim.Adagrad(model.parameters(), lr=0.02)
    device = sim.Device(forward=8e-3, backward=11e-3, optimizer=2e-3)
    model = device.place(model, opt)

    for epoch in range(400):
        t0 = time.time()
        for step, (history, dwell, candidate, clicked) in enumerate(train):
            history = history.to(device, non_blocking=True)
            dwell = dwell.to(device, non_blocking=True)
            candidate = candidate.to(device, non_blocking=True)
            clicked = clicked.to(device, non_blocking=True)
            logits = model(history, dwell, candidate)
            loss = F.binary_cross_entropy_with_logits(logits, clicked)
            opt.zero_grad()
            loss.backward()
            opt.step()
            if step % 50 == 49:
                print(f"epoch {epoch} step {step + 1} loss {loss.item():.4f}", flush=True)
        print(f"epoch {epoch} took {time.time() - t0:.1f} s", flush=True)
