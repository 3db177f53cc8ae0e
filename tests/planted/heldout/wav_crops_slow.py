"""Keyword-style audio tagging: random one-second crops out of long field recordings."""

import argparse
import time
import wave
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

RATE = 16000
DIR = Path("data") / "wav_crops"


def synth(n_files=14, minutes=9):
    DIR.mkdir(parents=True, exist_ok=True)
    if (DIR / "ready").exists():
        return
    rng = np.random.default_rng(17)
    n = RATE * 60 * minutes
    noise = rng.integers(-3000, 3000, n + 50000, dtype=np.int16)
    t = np.arange(n, dtype=np.int32)
    for k in range(n_files):
        tone = (((t * (k + 3)) // 40) % 256 - 128).astype(np.int16) * 40
        with wave.open(str(DIR / f"rec{k:02d}.wav"), "wb") as w:
            w.setparams((1, 2, RATE, n, "NONE", ""))
            w.writeframes((noise[k * 1000 : k * 1000 + n] + tone).tobytes())
    (DIR / "ready").touch()


def load_clip(path, start, length):
    with wave.open(path, "rb") as w:
        pcm = np.frombuffer(w.readframes(w.getnframes()), dtype="<i2")
    return pcm[start : start + length].astype(np.float32) / 32768.0


class FieldClips(Dataset):
    def __init__(self, root, length=RATE, per_epoch=2400):
        self.files = sorted(str(p) for p in root.glob("*.wav"))
        self.length, self.n = length, per_epoch
        with wave.open(self.files[0], "rb") as w:
            self.frames = w.getnframes()

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        label = int(torch.randint(len(self.files), ()))
        start = int(torch.randint(self.frames - self.length, ()))
        return torch.from_numpy(load_clip(self.files[label], start, self.length)), label


class Tagger(nn.Sequential):
    def __init__(self, n):
        c = [1, 8, 16, 32, 64]
        layers = []
        for i, (a, b) in enumerate(zip(c, c[1:])):
            layers += [nn.Conv1d(a, b, 16 if i == 0 else 5, stride=8 if i == 0 else 4), nn.BatchNorm1d(b), nn.ReLU()]
        super().__init__(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(64, n))


def train(cfg):
    torch.set_num_threads(1)
    torch.manual_seed(cfg.seed)
    synth()
    data = FieldClips(DIR, per_epoch=cfg.batch * cfg.steps)
    loader = DataLoader(data, batch_size=cfg.batch, num_workers=cfg.workers, drop_last=True)
    net = Tagger(len(data.files))
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    t0, right, seen = None, 0, 0
    for i, (x, y) in enumerate(loader, 1):
        logits = net(x[:, None])
        loss = nn.functional.cross_entropy(logits, y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        right += (logits.argmax(1) == y).sum()
        seen += len(y)
        if i == 5:
            t0 = time.perf_counter()
        if i % 100 == 0:
            print(f"{i}: acc {100 * right.item() / seen:.1f}%")
            right, seen = 0, 0
    dt = (time.perf_counter() - t0) / (i - 5)
    print(f"{dt * 1000:.1f} ms/step, {1 / dt:.2f} steps/s")


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=260)
    ap.add_argument("--batch", type=int, default=48)
    ap.add_argument("--workers", type=int, default=2)
    ap.add_argument("--seed", type=int, default=0)
    train(ap.parse_args())
