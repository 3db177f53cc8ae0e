"""Bird species from 6 s field recordings (raw PCM on disk, log-mel in the dataset)."""

import os
import sys
import tempfile
import time

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

SR, SECONDS, N_FFT, HOP, MELS = 22050, 6, 1024, 256, 64


def mel_bank():
    hz = 700 * (10 ** (np.linspace(0, 2595 * np.log10(1 + SR / 2 / 700), MELS + 2) / 2595) - 1)
    bins = np.floor((N_FFT + 1) * hz / SR).astype(int)
    fb = np.zeros((MELS, N_FFT // 2 + 1), np.float32)
    for m in range(1, MELS + 1):
        a, b, c = bins[m - 1], max(bins[m], bins[m - 1] + 1), max(bins[m + 1], bins[m] + 1)
        fb[m - 1, a:b] = (np.arange(a, b) - a) / (b - a)
        fb[m - 1, b:c] = (c - np.arange(b, c)) / (c - b)
    return fb


FB, WIN = mel_bank(), np.hanning(N_FFT).astype(np.float32)


def features(path):
    """pre-emphasis, STFT, mel, log, per-band median removal, normalise"""
    pcm = np.fromfile(path, dtype=np.int16).astype(np.float32) / 32768
    pcm = np.append(pcm[0], pcm[1:] - 0.97 * pcm[:-1])
    frames = np.lib.stride_tricks.sliding_window_view(pcm, N_FFT)[::HOP] * WIN
    power = np.abs(np.fft.rfft(frames)) ** 2
    mel = np.log(power @ FB.T + 1e-8).T
    mel = mel - np.median(mel, axis=1, keepdims=True)
    return ((mel - mel.mean()) / mel.std()).astype(np.float32)


class Calls(Dataset):
    def __init__(self, paths, labels):
        self.paths, self.labels = paths, labels

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        return torch.from_numpy(features(self.paths[i])), self.labels[i]


class PreparedCalls(Calls):
    """--fixed: features computed once, before training"""

    def __init__(self, paths, labels):
        super().__init__(paths, labels)
        self.mel = torch.stack([torch.from_numpy(features(p)) for p in paths])

    def __getitem__(self, i):
        return self.mel[i], self.labels[i]


def synth(folder, n):
    rng = np.random.default_rng(9)
    t = np.arange(SR * SECONDS) / SR
    hiss = rng.normal(0, 0.05, t.size)
    paths, labels = [], []
    calls = [0.3 * np.sin(2 * np.pi * (1500 + 600 * s + 200 * np.sin(2 * np.pi * (2 + s) * t)) * t) for s in range(8)]
    for i in range(n):
        sp = i % 8
        x = np.roll(hiss, int(rng.integers(t.size))) + np.roll(calls[sp], int(rng.integers(t.size)))
        paths.append(os.path.join(folder, f"rec_{i:04d}.pcm"))
        (x * 32767).astype(np.int16).tofile(paths[-1])
        labels.append(sp)
    return paths, labels


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        paths, labels = synth(folder, 320)
        ds = (PreparedCalls if "--fixed" in sys.argv else Calls)(paths, labels)
        loader = DataLoader(ds, batch_size=16, shuffle=True, num_workers=2, persistent_workers=True)
        model = nn.Sequential(
            nn.Conv1d(MELS, 48, 5, stride=2),
            nn.ReLU(),
            nn.Conv1d(48, 48, 5, stride=2),
            nn.ReLU(),
            nn.AdaptiveMaxPool1d(1),
            nn.Flatten(),
            nn.Linear(48, 8),
        )
        opt = torch.optim.Adam(model.parameters(), lr=1e-3)
        for epoch in range(28):
            t0, total = time.time(), 0
            for mel, y in loader:
                loss = nn.functional.cross_entropy(model(mel), y)
                opt.zero_grad()
                loss.backward()
                opt.step()
                total += loss.detach()
            print(f"{epoch=} loss={float(total) / len(loader):.3f} {time.time() - t0:.2f}s", flush=True)
