# arrhythmia classifier, 1-lead ECG, small in-house cohort
from __future__ import annotations
import argparse, time, gzip, pickle
from pathlib import Path
import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset, DataLoader
from accelerate import Accelerator

ROOT = Path("data") / "ecg_epochs"


def cohort(n=640, length=3000):
    ROOT.mkdir(parents=True, exist_ok=True)
    f = ROOT / "cohort.pkl.gz"
    if not f.exists():
        rng = np.random.default_rng(42)
        t = np.arange(length) / 250
        recs = []
        for i in range(n):
            y = i % 4
            hr = 1.0 + 0.25 * y
            sig = (
                np.exp(-(((t * hr) % 1 - 0.3) ** 2) / 0.001)
                + 0.4 * np.sin(t * 0.9 + i)
                + 0.05 * rng.normal(size=length)
            )
            recs.append((f"p{i:04d}", sig.astype(np.float32), y))
        with gzip.open(f, "wb", compresslevel=1) as fh:
            pickle.dump(recs, fh)
    with gzip.open(f, "rb") as fh:
        return pickle.load(fh)


def remove_baseline(sig, win=151):
    """Running median baseline (as in the paper), then unit variance."""
    half = win // 2
    padded = np.pad(sig, half, mode="edge")
    frames = np.lib.stride_tricks.sliding_window_view(padded, win)
    base = np.median(frames[::2], axis=1)
    base = np.interp(np.arange(len(sig)), np.arange(0, len(sig), 2), base)
    out = sig - base.astype(np.float32)
    return out / (out.std() + 1e-6)


class ECG(Dataset):
    def __init__(self, records):
        self.signals = torch.from_numpy(np.stack([remove_baseline(sig) for _, sig, _ in records]))
        self.targets = [y for _, _, y in records]

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, i):
        x, y = self.signals[i], self.targets[i]
        shift = int(torch.randint(0, 250, ()))
        return torch.roll(x, shift)[None], y


class ResBlock(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.a = nn.Conv1d(i, o, 7, 2, 3)
        self.b = nn.Conv1d(o, o, 7, 1, 3)
        self.s = nn.Conv1d(i, o, 1, 2)

    def forward(self, x):
        return torch.relu(self.b(torch.relu(self.a(x))) + self.s(x))


def main(epochs, batch):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    acc = Accelerator(cpu=True)
    net = nn.Sequential(
        nn.Conv1d(1, 8, 15, 4, 7),
        ResBlock(8, 12),
        ResBlock(12, 24),
        ResBlock(24, 24),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(24, 4),
    )
    opt = torch.optim.AdamW(net.parameters(), 2e-3)
    loader = DataLoader(ECG(cohort()), batch, shuffle=True, num_workers=2, persistent_workers=True, drop_last=True)
    net, opt, loader = acc.prepare(net, opt, loader)
    n, t0 = 0, 0
    for ep in range(epochs):
        for x, y in loader:
            loss = nn.functional.cross_entropy(net(x), y, label_smoothing=0.05)
            opt.zero_grad()
            acc.backward(loss)
            acc.clip_grad_norm_(net.parameters(), 2.0)
            opt.step()
            n += 1
            if n == 5:
                t0 = time.perf_counter()
        if ep % 5 == 0:
            acc.print(f"epoch {ep} | loss {loss.item():.3f}")
    k = (time.perf_counter() - t0) / (n - 5)
    acc.print(f"{n} steps, {k * 1e3:.1f} ms/step, {1 / k:.2f} steps/s")


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=40)
    p.add_argument("--batch", type=int, default=40)
    main(**vars(p.parse_args()))
