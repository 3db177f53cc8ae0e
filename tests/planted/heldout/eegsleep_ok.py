"""Sleep staging from multichannel EEG epochs using wavelet scalograms."""

import os
import time

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

HOME = "data_eegsleep"
CH, LEN, FS = 8, 3000, 100
FREQS = np.geomspace(0.7, 30, 28)
N = 1040
STAGES = 5


def acquire():
    os.makedirs(HOME, exist_ok=True)
    if os.path.exists(f"{HOME}/stage.npy"):
        return
    rng = np.random.default_rng(12)
    stage = rng.integers(0, STAGES, N)
    t = np.arange(LEN) / FS
    carrier = np.sin(2 * np.pi * np.array([1, 4, 8, 13, 22])[stage][:, None] * t)[:, None, :]
    raw = rng.normal(size=(N, CH, LEN)).astype(np.float32) + 0.7 * carrier.astype(np.float32)
    np.save(f"{HOME}/raw.npy", raw)
    np.save(f"{HOME}/stage.npy", stage)


def wavelet_bank(n):
    f = np.fft.fftfreq(n, 1 / FS)
    return np.stack([np.exp(-0.5 * ((f - f0) * 6 / f0) ** 2) * (f > 0) for f0 in FREQS]).astype(np.float32)


def scalogram(x, bank):
    """(channels, samples) -> (channels, freqs, 60): log band power in half-second bins."""
    x = x - x.mean(1, keepdims=True)
    x = x / (x.std(1, keepdims=True) + 1e-6)
    coef = np.fft.ifft(np.fft.fft(x, axis=1)[:, None, :] * bank[None], axis=2)
    power = np.square(np.abs(coef)).reshape(CH, len(FREQS), 60, LEN // 60).mean(3)
    out = np.log(power + 1e-5)
    return ((out - out.mean((1, 2), keepdims=True)) / out.std((1, 2), keepdims=True)).astype(np.float32)


class Epochs30s(Dataset):
    def __init__(self):
        path = f"{HOME}/scalograms.npy"
        if not os.path.exists(path):
            raw, bank = np.load(f"{HOME}/raw.npy", mmap_mode="r"), wavelet_bank(LEN)
            np.save(f"{HOME}/tmp.npy", np.stack([scalogram(np.asarray(r), bank) for r in raw]))
            os.rename(f"{HOME}/tmp.npy", path)
        self.x = torch.from_numpy(np.load(path))
        self.stage = torch.from_numpy(np.load(f"{HOME}/stage.npy"))

    def __len__(self):
        return len(self.stage)

    def __getitems__(self, idx):
        return self.x[idx], self.stage[idx]


class Stager(nn.Module):
    def __init__(self, w=32):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(CH, w, 3, padding=1),
            nn.BatchNorm2d(w),
            nn.GELU(),
            nn.Conv2d(w, w, 3, padding=1),
            nn.BatchNorm2d(w),
            nn.GELU(),
            nn.MaxPool2d(2),
            nn.Conv2d(w, 2 * w, 3, padding=1),
            nn.BatchNorm2d(2 * w),
            nn.GELU(),
            nn.Conv2d(2 * w, 2 * w, 3, padding=1),
            nn.GELU(),
        )
        self.out = nn.Linear(2 * w, STAGES)

    def forward(self, x):
        return self.out(self.conv(x).mean((2, 3)))


class Fit:
    def __init__(self):
        self.loader = DataLoader(Epochs30s(), 16, shuffle=True, collate_fn=lambda b: b)
        self.model = Stager()
        self.opt = torch.optim.RAdam(self.model.parameters(), 1e-3)
        self.loss = nn.CrossEntropyLoss()

    def epoch(self, number):
        t0, n = time.time(), 0
        for x, y in self.loader:
            self.opt.zero_grad()
            loss = self.loss(self.model(x), y)
            loss.backward()
            self.opt.step()
            n += len(y)
            if n % 160 == 0:
                print(
                    f"epoch {number} {n}/{N} loss {loss.item():.3f} {n / (time.time() - t0):.1f} samples/s", flush=True
                )

    def run(self, epochs):
        for k in range(epochs):
            self.epoch(k)


if __name__ == "__main__":
    acquire()
    torch.manual_seed(1)
    Fit().run(30)
