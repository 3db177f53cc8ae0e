#!/usr/bin/env python
"""Electron / pion separation from calorimeter hits."""

import argparse
import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

LAYERS, SIDE = 4, 20


@dataclass
class Config:
    events: int = 6400
    mean_hits: int = 900
    batch: int = 64
    epochs: int = 20
    workers: int = 2
    lr: float = 1e-3
    max_steps: int = 0
    fixed: bool = False


class Events(Dataset):
    def __init__(self, cfg):
        rng = np.random.default_rng(5)
        counts = rng.poisson(cfg.mean_hits, cfg.events)
        self.ends = np.cumsum(counts)
        self.starts = self.ends - counts
        self.label = rng.integers(0, 2, cfg.events)
        wide = np.repeat(np.where(self.label, 2.0, 3.5), counts).astype(np.float32)
        total = int(self.ends[-1])
        pos = rng.standard_normal((2, total), dtype=np.float32) * wide + SIDE / 2
        self.iy, self.ix = np.clip(pos, 0, SIDE - 1).astype(np.int16)
        self.layer = rng.integers(0, LAYERS, total, dtype=np.int16)
        self.energy = rng.exponential(1.0, total).astype(np.float32)

    def __len__(self):
        return len(self.label)

    def __getitem__(self, i):
        s = slice(self.starts[i], self.ends[i])
        return {
            "layer": self.layer[s],
            "iy": self.iy[s],
            "ix": self.ix[s],
            "energy": self.energy[s],
            "label": int(self.label[i]),
        }


class ToImage:
    """Turns a list of events into one image per event, plus total energy per layer."""

    def __call__(self, events):
        image = np.zeros((len(events), LAYERS, SIDE, SIDE), np.float32)
        per_layer = np.zeros((len(events), LAYERS), np.float32)
        for b, ev in enumerate(events):
            for l, y, x, e in zip(ev["layer"], ev["iy"], ev["ix"], ev["energy"]):
                image[b, l, y, x] += e
                per_layer[b, l] += e
        return self.finish(image, per_layer, events)

    @staticmethod
    def finish(image, per_layer, events):
        return {
            "image": torch.from_numpy(np.log1p(image)),
            "per_layer": torch.from_numpy(per_layer) / 100,
            "label": torch.tensor([ev["label"] for ev in events], dtype=torch.float32),
        }


class ToImageFlat(ToImage):
    def __call__(self, events):
        n = len(events)
        b = np.repeat(np.arange(n), [len(ev["energy"]) for ev in events])
        l, y, x, e = (np.concatenate([ev[k] for ev in events]) for k in ("layer", "iy", "ix", "energy"))
        cell = ((b * LAYERS + l) * SIDE + y) * SIDE + x
        image = np.bincount(cell, e, n * LAYERS * SIDE * SIDE).astype(np.float32).reshape(n, LAYERS, SIDE, SIDE)
        return self.finish(image, image.sum((2, 3)), events)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(LAYERS, 16, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
        )
        self.energy = nn.Linear(LAYERS, 16)
        self.pid = nn.Linear(128 + 16, 1)
        self.total = nn.Linear(128, 1)

    def forward(self, batch):
        h = self.conv(batch["image"]).flatten(1)
        return self.pid(torch.cat([h, self.energy(batch["per_layer"]).relu()], 1))[:, 0], self.total(h)[:, 0]


def run(cfg):
    torch.manual_seed(1)
    loader = DataLoader(
        Events(cfg),
        cfg.batch,
        shuffle=True,
        num_workers=cfg.workers,
        persistent_workers=cfg.workers > 0,
        collate_fn=ToImageFlat() if cfg.fixed else ToImage(),
    )
    net = Net()
    opt = torch.optim.Adam(net.parameters(), lr=cfg.lr)
    bce, mse = nn.BCEWithLogitsLoss(), nn.MSELoss()
    done, t0 = 0, time.monotonic()
    for epoch in range(cfg.epochs):
        for batch in loader:
            pid, total = net(batch)
            losses = {"pid": bce(pid, batch["label"]), "energy": 0.1 * mse(total, batch["per_layer"].sum(1))}
            loss = sum(losses.values())
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 5.0)
            opt.step()
            done += 1
            if done % 50 == 0:
                print(epoch, done, {k: round(v.item(), 4) for k, v in losses.items()}, flush=True)
            if done == cfg.max_steps:
                break
        if done == cfg.max_steps:
            break
    print(f"{done} steps in {time.monotonic() - t0:.1f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name, field in Config.__dataclass_fields__.items():
        if field.type is bool or field.type == "bool":
            parser.add_argument("--" + name, action="store_true")
        else:
            parser.add_argument("--" + name.replace("_", "-"), type=type(field.default), default=field.default)
    run(Config(**vars(parser.parse_args())))
