"""Jet tagging: a set network over the tracks of each jet."""

import argparse
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

FIELDS = ("pt", "eta", "phi", "charge", "d0", "z0", "chi2", "hits")


class Jets(Dataset):
    def __init__(self, n=30_000, seed=8):
        rng = np.random.default_rng(seed)
        count = rng.integers(20, 60, n)
        self.start = np.concatenate([[0], np.cumsum(count)])
        self.tracks = torch.from_numpy(rng.standard_normal((len(FIELDS), self.start[-1]), dtype=np.float32))
        self.flavour = torch.from_numpy(rng.integers(0, 4, n))

    def __len__(self):
        return len(self.flavour)

    def __getitem__(self, i):
        a, b = self.start[i], self.start[i + 1]
        return self.tracks[:, a:b], self.flavour[i]


def pack(jets):
    tracks, flavour = zip(*jets)
    count = torch.tensor([t.shape[1] for t in tracks])
    owner = torch.arange(len(jets)).repeat_interleave(count)
    return torch.cat(tracks, 1).T.contiguous(), owner, torch.stack(flavour)


class SetTagger(nn.Module):
    def __init__(self, h=320):
        super().__init__()
        self.track = nn.Sequential(nn.Linear(len(FIELDS), h), nn.ReLU(), nn.Linear(h, h), nn.ReLU())
        self.jet = nn.Sequential(nn.Linear(h, h), nn.ReLU(), nn.Linear(h, 4))

    def forward(self, tracks, owner, n):
        h = self.track(tracks)
        return self.jet(h.new_zeros(n, h.shape[1]).index_add(0, owner, h))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=0)
    ap.add_argument("--epochs", type=int, default=40)
    ap.add_argument("--jets", type=int, default=32, help="jets in a batch")
    args = ap.parse_args()
    torch.set_num_threads(1)
    loader = DataLoader(
        Jets(),
        batch_size=args.jets,
        shuffle=True,
        num_workers=2,
        persistent_workers=True,
        collate_fn=pack,
        drop_last=True,
    )
    net = SetTagger()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    n, t0 = 0, time.perf_counter()
    for epoch in range(args.epochs):
        hit = 0
        for tracks, owner, flavour in loader:
            logits = net(tracks, owner, len(flavour))
            loss = nn.functional.cross_entropy(logits, flavour)
            opt.zero_grad()
            loss.backward()
            opt.step()
            hit += (logits.argmax(1) == flavour).sum().item()
            n += 1
            if n == args.steps:
                print(f"{(time.perf_counter() - t0) / n:.4f} s/step")
                return
        print(f"epoch {epoch} accuracy {hit / (len(loader) * args.jets):.3f}", flush=True)


if __name__ == "__main__":
    main()
