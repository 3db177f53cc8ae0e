"""Arrhythmia from ECG strips: wavelet scalogram of each strip, then a small conv net. Many epochs over few patients."""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


@dataclass
class Config:
    strips: int = 160
    length: int = 2048
    scales: int = 32
    batch: int = 8
    max_seconds: float = 90
    fixed: bool = False


def synthesize(cfg: Config):
    rng = np.random.default_rng(11)
    t = np.arange(cfg.length) / 250
    beats, labels = [], rng.integers(0, 3, cfg.strips)
    for label in labels:
        rate = 1.0 + 0.6 * label
        jitter = 0.3 * (label == 2) * np.cumsum(rng.standard_normal(cfg.length)) / 50
        beats.append(np.exp(-((np.sin(np.pi * rate * t + jitter) / 0.08) ** 2)) + 0.1 * rng.standard_normal(cfg.length))
    return np.stack(beats).astype(np.float32), labels


class Scalograms(Dataset):
    def __init__(self, cfg: Config):
        self.cfg = cfg
        self.strips, self.labels = synthesize(cfg)
        widths = np.geomspace(2, 60, cfg.scales)
        u = np.arange(-200, 201)
        self.wavelets = [(1 - (u / w) ** 2) * np.exp(-((u / w) ** 2) / 2) / np.sqrt(w) for w in widths]
        self.done = {}

    def __len__(self):
        return len(self.strips)

    def scalogram(self, i):
        strip = self.strips[i].astype(np.float64)
        strip -= np.median(np.lib.stride_tricks.sliding_window_view(np.pad(strip, 50), 101), axis=1)  # baseline wander
        rows = [np.convolve(strip, wavelet, mode="same")[::16] for wavelet in self.wavelets]
        return torch.from_numpy(np.abs(np.stack(rows)).astype(np.float32))[None]

    def __getitem__(self, i):
        if not self.cfg.fixed:
            return self.scalogram(i), int(self.labels[i])
        if i not in self.done:
            self.done[i] = self.scalogram(i)
        return self.done[i], int(self.labels[i])


def fit(cfg: Config):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(Scalograms(cfg), batch_size=cfg.batch, shuffle=True)
    net = nn.Sequential(
        nn.Conv2d(1, 8, 5, 2),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, 2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d((2, 4)),
        nn.Flatten(),
        nn.Linear(128, 3),
    )
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    began, epoch = time.time(), 0
    while time.time() - began < cfg.max_seconds:
        t, correct = time.time(), 0
        for x, y in loader:
            logits = net(x)
            loss = nn.functional.cross_entropy(logits, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            correct += (logits.argmax(1) == y).sum().item()
        print(
            f"epoch {epoch}: acc {correct / cfg.strips:.2f}, {(time.time() - t) / len(loader) * 1e3:.1f} ms/step",
            flush=True,
        )
        epoch += 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--fixed", action="store_true", help="keep each scalogram once it is made")
    parser.add_argument("--max-seconds", type=float, default=90)
    fit(Config(**vars(parser.parse_args())))
