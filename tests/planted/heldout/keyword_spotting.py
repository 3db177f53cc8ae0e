"""Keyword spotting with MFCCs and a small CNN. Clips are one second at 16 kHz, int16, one .npy file each."""

import argparse
import pathlib
import time

import numpy as np
import scipy.fft
import scipy.signal
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

RATE, CLASSES = 16000, 10


def synthesize(root):
    root = pathlib.Path(root)
    root.mkdir(parents=True, exist_ok=True)
    done = root / "done"
    if done.exists():
        return
    rng = np.random.default_rng(1)
    t = np.arange(RATE) / RATE
    for i in range(960):
        c = i % CLASSES
        f = 200 * (1 + c) * rng.uniform(0.95, 1.05)
        y = np.sin(6.2832 * f * t + 3 * np.sin(6.2832 * (c + 2) * t)) * np.exp(-3 * (t - 0.5) ** 2)
        y = 0.5 * y + 0.1 * rng.standard_normal(RATE)
        np.save(root / f"{c}_{i:04d}.npy", (np.clip(y, -1, 1) * 32767).astype(np.int16))
    done.touch()


def mel_bank(n_fft, bands):
    mel = lambda f: 2595 * np.log10(1 + f / 700)
    hz = 700 * (10 ** (np.linspace(mel(40), mel(RATE / 2), bands + 2) / 2595) - 1)
    bins = hz / RATE * n_fft
    k = np.arange(n_fft // 2 + 1)
    up = (k[None] - bins[:-2, None]) / (bins[1:-1] - bins[:-2])[:, None]
    down = (bins[2:, None] - k[None]) / (bins[2:] - bins[1:-1])[:, None]
    return np.clip(np.minimum(up, down), 0, None)


BANK = mel_bank(512, 40)


def features(wave):
    """40 MFCCs with first and second differences, mean and variance normalised per clip."""
    y = wave.astype(np.float64) / 32768
    y = scipy.signal.lfilter([1, -0.97], [1], y)
    b, a = scipy.signal.butter(4, [60, 7000], "bandpass", fs=RATE)
    y = scipy.signal.filtfilt(b, a, y)
    frames = np.lib.stride_tricks.sliding_window_view(y, 400)[::160]
    spec = np.abs(np.fft.rfft(frames * np.hamming(400), 512)) ** 2
    energy = np.einsum("tf,mf->tm", spec, BANK)
    logmel = np.log(energy + 1e-8)
    logmel = scipy.signal.medfilt2d(logmel, 3)
    cep = scipy.fft.dct(logmel, axis=1, norm="ortho")
    d1 = scipy.signal.savgol_filter(cep, 9, 2, deriv=1, axis=0)
    d2 = scipy.signal.savgol_filter(cep, 9, 2, deriv=2, axis=0)
    out = np.stack([cep, d1, d2])
    out = (out - out.mean((1, 2), keepdims=True)) / (out.std((1, 2), keepdims=True) + 1e-6)
    return torch.from_numpy(out.astype(np.float32))


class Keywords(Dataset):
    def __init__(self, root, table=None):
        self.files = sorted(pathlib.Path(root).glob("*_*.npy"))
        self.table = table

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        label = int(self.files[i].name[0])
        if self.table is not None:
            return self.table[i], label
        return features(np.load(self.files[i])), label


def cnn():
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, 2, 1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 48, 3, 2, 1),
        nn.BatchNorm2d(48),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(48, CLASSES),
    )


def run(args):
    synthesize(args.data)
    table = None
    if args.fixed:
        cache = pathlib.Path(args.data) / "features.pt"
        if not cache.exists():
            torch.save(torch.stack([features(np.load(f)) for f in Keywords(args.data).files]), cache)
        table = torch.load(cache)
    loader = DataLoader(
        Keywords(args.data, table),
        args.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=args.workers,
        persistent_workers=args.workers > 0,
    )
    model = cnn()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(args.epochs):
        tic, running, n = time.time(), 0.0, 0
        for i, (x, y) in enumerate(loader):
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            n += len(y)
            if i % 10 == 0:
                running = loss.item()
        print(f"epoch {epoch:3d}  loss {running:.3f}  {n / (time.time() - tic):.1f} samples/s", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("--epochs", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=24)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--fixed", action="store_true")
    run(parser.parse_args())
