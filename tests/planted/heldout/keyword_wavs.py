"""Keyword spotting from one-second wav clips: filterbank envelopes and a small CNN, with mixup."""

import argparse
import os
import tempfile
import time
import wave
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, Subset


@dataclass
class Config:
    clips: int = 1040
    val_clips: int = 48
    samples: int = 16384
    rate: int = 16000
    bands: int = 40
    frames: int = 128
    keywords: int = 8
    batch_size: int = 16
    epochs: int = 11
    mixup: float = 0.2
    lr: float = 1e-3
    workers: int = 2
    seed: int = 5


def write_clips(root, cfg):
    rng = np.random.default_rng(cfg.seed)
    t = np.arange(cfg.samples) / cfg.rate
    entries = []
    for i in range(cfg.clips):
        label = int(rng.integers(cfg.keywords))
        base = 200 * 1.4**label * rng.uniform(0.95, 1.05)
        sig = np.sin(2 * np.pi * base * t) + 0.5 * np.sin(4 * np.pi * base * t + rng.uniform(0, 6))
        sig = 6000 * sig + rng.normal(0, 2000, cfg.samples)
        path = os.path.join(root, f"clip_{i:05d}.wav")
        with wave.open(path, "wb") as f:
            f.setnchannels(1)
            f.setsampwidth(2)
            f.setframerate(cfg.rate)
            f.writeframes(np.clip(sig, -32767, 32767).astype(np.int16).tobytes())
        entries.append((path, label))
    return entries


class FilterBank:
    """Band-pass filters on a logarithmic scale, pooled envelopes per band."""

    def __init__(self, cfg):
        freqs = np.fft.rfftfreq(cfg.samples, 1 / cfg.rate)
        centres = np.geomspace(80, 7000, cfg.bands)
        width = centres * 0.12
        self.response = np.exp(-0.5 * ((freqs[None, :] - centres[:, None]) / width[:, None]) ** 2)
        self.samples, self.frames = cfg.samples, cfg.frames

    def __call__(self, signal):
        signal = np.append(signal[:1], signal[1:] - 0.97 * signal[:-1])
        spectrum = np.fft.rfft(signal)
        bands = np.fft.irfft(spectrum[None, :] * self.response, n=self.samples, axis=1)
        envelope = np.abs(bands).reshape(len(bands), self.frames, -1).mean(-1)
        feats = np.log(envelope + 1e-4)
        feats = (feats - feats.mean()) / (feats.std() + 1e-6)
        return feats.astype(np.float32)


class KeywordDataset(Dataset):
    def __init__(self, entries, cfg, in_memory=False):
        self.entries = entries
        self.bank = FilterBank(cfg)
        self.store = None
        if in_memory:
            self.store = [self.load(i) for i in range(len(entries))]

    def load(self, idx):
        path, label = self.entries[idx]
        with wave.open(path, "rb") as f:
            pcm = np.frombuffer(f.readframes(f.getnframes()), dtype=np.int16)
        feats = self.bank(pcm.astype(np.float64) / 32768.0)
        return torch.from_numpy(feats).unsqueeze(0), label

    def __len__(self):
        return len(self.entries)

    def __getitem__(self, idx):
        if self.store is not None:
            return self.store[idx]
        return self.load(idx)


class KeywordNet(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 12, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(12, 24, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(24, 32, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
        )
        self.head = nn.Linear(32, cfg.keywords)

    def forward(self, x):
        return self.head(self.features(x).flatten(1))


def mixup(x, y, alpha, rng):
    lam = float(rng.beta(alpha, alpha))
    perm = torch.randperm(len(x))
    return lam * x + (1 - lam) * x[perm], y, y[perm], lam


@torch.no_grad()
def accuracy(model, loader):
    model.eval()
    hits = total = 0
    for x, y in loader:
        hits += (model(x).argmax(1) == y).sum().item()
        total += len(y)
    return hits / total


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fixed", action="store_true")
    args = parser.parse_args()
    cfg = Config()
    torch.manual_seed(cfg.seed)
    torch.set_num_threads(1)
    rng = np.random.default_rng(cfg.seed)

    with tempfile.TemporaryDirectory() as root:
        entries = write_clips(root, cfg)
        start = time.time()
        dataset = KeywordDataset(entries, cfg, in_memory=args.fixed)
        n_train = cfg.clips - cfg.val_clips
        train_set = Subset(dataset, range(n_train))
        val_set = Subset(dataset, range(n_train, cfg.clips))
        train_loader = DataLoader(
            train_set,
            batch_size=cfg.batch_size,
            shuffle=True,
            drop_last=True,
            num_workers=cfg.workers,
            persistent_workers=True,
        )
        val_loader = DataLoader(val_set, batch_size=cfg.batch_size)

        model = KeywordNet(cfg)
        optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=cfg.epochs)
        steps = 0
        for epoch in range(cfg.epochs):
            model.train()
            total, t_epoch = 0.0, time.time()
            for x, y in train_loader:
                x, y_a, y_b, lam = mixup(x, y, cfg.mixup, rng)
                logits = model(x)
                loss = lam * F.cross_entropy(logits, y_a) + (1 - lam) * F.cross_entropy(logits, y_b)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.item()
                steps += 1
            scheduler.step()
            print(f"epoch {epoch}: loss {total / len(train_loader):.4f} ({time.time() - t_epoch:.1f} s)", flush=True)
        print(f"val accuracy {accuracy(model, val_loader):.3f}")
        print(f"{steps} steps in {time.time() - start:.1f} s")


if __name__ == "__main__":
    main()
