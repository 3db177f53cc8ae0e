"""Arrhythmia classifier on twelve-lead ECG, with stochastic augmentation."""

import argparse
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


@dataclass
class LoaderCfg:
    batch_size: int = 64
    num_workers: int = 0
    shuffle: bool = True
    drop_last: bool = True


@dataclass
class Cfg:
    root: Path = Path() / "data_ecg"
    patients: int = 320
    holter: int = 16_000
    stride: int = 250
    leads: int = 12
    length: int = 1000
    loader: LoaderCfg = field(default_factory=LoaderCfg)


class Augment:
    def __init__(self, length):
        self.grid = np.arange(length, dtype=np.float32)
        self.rng = None

    def __call__(self, ecg):
        if self.rng is None:
            self.rng = np.random.default_rng(torch.initial_seed() % 2**32)
        rng, n = self.rng, len(self.grid)
        knots = np.linspace(0, n - 1, 6)
        warped = np.interp(self.grid, knots, knots + rng.normal(0, 6, 6))
        ecg = np.stack([np.interp(warped, self.grid, lead) for lead in ecg])
        hum = np.fft.rfft(rng.standard_normal(ecg.shape))
        hum[:, int(rng.integers(40, 120)) :] = 0
        ecg += 0.2 * np.fft.irfft(hum, n) + 0.03 * rng.standard_normal(ecg.shape)
        wander = 0.1 * np.sin(self.grid * rng.uniform(0.002, 0.01) + rng.uniform(0, 6))
        return (ecg * rng.uniform(0.8, 1.2) + wander).astype(np.float32)


class ECG(Dataset):
    def __init__(self, cfg):
        self.signals = np.load(cfg.root / "signals.npy")
        self.rhythm = np.load(cfg.root / "rhythm.npy")
        self.length, self.stride = cfg.length, cfg.stride
        self.per_patient = (cfg.holter - cfg.length) // cfg.stride
        self.augment = Augment(cfg.length)

    def __len__(self):
        return len(self.rhythm) * self.per_patient

    def __getitem__(self, i):
        patient, k = divmod(i, self.per_patient)
        strip = self.signals[patient, :, k * self.stride : k * self.stride + self.length].astype(np.float32)
        return torch.from_numpy(self.augment(strip)), self.rhythm[patient]


def synthesise(cfg):
    if (cfg.root / "rhythm.npy").exists():
        return
    cfg.root.mkdir(exist_ok=True)
    rng = np.random.default_rng(4)
    signals = rng.standard_normal((cfg.patients, cfg.leads, cfg.holter), dtype=np.float32).astype(np.float16)
    np.save(cfg.root / "signals.npy", signals)
    np.save(cfg.root / "rhythm.npy", rng.integers(0, 9, cfg.patients))


def build():
    return nn.Sequential(
        nn.Conv1d(12, 32, 15, stride=4, padding=7),
        nn.ReLU(),
        nn.Conv1d(32, 64, 9, stride=2, padding=4),
        nn.ReLU(),
        nn.Conv1d(64, 64, 7, stride=2, padding=3),
        nn.ReLU(),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(64, 9),
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=0)
    opts = parser.parse_args()
    torch.set_num_threads(1)
    cfg = Cfg()
    synthesise(cfg)
    loader = DataLoader(ECG(cfg), **vars(cfg.loader))
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    done, mark = 0, None
    for epoch in range(60):
        for signal, rhythm in loader:
            loss = nn.functional.cross_entropy(model(signal), rhythm)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done += 1
            if done == 8:
                mark = time.perf_counter()
            if done % 40 == 0:
                print(f"{epoch:3d} {done:6d} {loss.item():.4f}", flush=True)
            if opts.steps and done == opts.steps:
                print(f"seconds per step {(time.perf_counter() - mark) / (done - 8):.4f}")
                return


if __name__ == "__main__":
    main()
