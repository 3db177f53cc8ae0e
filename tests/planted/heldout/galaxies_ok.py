"""Galaxy morphology from cut-outs, with the survey catalogue kept at hand for the epoch summary."""

import argparse
import gc
import time

import numpy as np
import torch
from torch import nn


class Source:
    __slots__ = ("ra", "dec", "mags", "neighbours", "flags")

    def __init__(self, ra, dec, mags, neighbours, flags):
        self.ra, self.dec, self.mags, self.neighbours, self.flags = ra, dec, mags, neighbours, flags


class Survey:
    def __init__(self, n_sources=400_000, n_cutouts=6000, seed=21):
        rng = np.random.default_rng(seed)
        ra, dec = rng.uniform(0, 360, n_sources).tolist(), rng.uniform(-30, 30, n_sources).tolist()
        mags = rng.normal(20, 1.5, (n_sources, 3)).tolist()
        self.catalogue = [Source(a, d, m, [], {"star": []}) for a, d, m in zip(ra, dec, mags)]
        for left, right in zip(self.catalogue, self.catalogue[1:]):
            left.neighbours.append(right)
        self.cutouts = torch.from_numpy(rng.standard_normal((n_cutouts, 3, 48, 48), dtype=np.float32))
        self.kind = torch.from_numpy(rng.integers(0, 5, n_cutouts))

    def bright(self, limit=18.0):
        return sum(s.mags[1] < limit for s in self.catalogue[:5000])


class Morphology(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(
            nn.Conv2d(3, 24, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(24, 48, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(48, 64, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(3),
        )
        self.c = nn.Linear(64 * 9, 5)

    def forward(self, x):
        return self.c(self.f(x).flatten(1))


class Run:
    def __init__(self, args):
        self.args = args
        self.survey = Survey()
        self.net = Morphology()
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.05, momentum=0.9, nesterov=True)
        self.history = []
        gc.collect()
        gc.freeze()

    def one_step(self, idx):
        x, y = self.survey.cutouts[idx], self.survey.kind[idx]
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()

    def go(self):
        step, t0 = 0, time.perf_counter()
        for epoch in range(self.args.epochs):
            for _ in range(5):
                for idx in torch.randperm(len(self.survey.kind)).split(32):
                    self.history.append(self.one_step(idx))
                    step += 1
                    if step == self.args.steps:
                        print(f"{(time.perf_counter() - t0) / step:.4f} s/step")
                        return
            print(f"epoch {epoch} loss {np.mean(self.history[-100:]):.4f} bright {self.survey.bright()}", flush=True)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=0)
    ap.add_argument("--epochs", type=int, default=30)
    torch.set_num_threads(1)
    Run(ap.parse_args()).go()
