"""Bird call detection on annotated field recordings (long WAV files + CSV of events)."""

import csv
import os
import time
import wave

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

BASE = "data_birdcalls"
RATE, CLIP = 16000, 12000
MINUTES = 24
SPECIES = 10


def record():
    table = f"{BASE}/events.csv"
    if os.path.exists(table):
        return
    os.makedirs(BASE, exist_ok=True)
    rng = np.random.default_rng(8)
    rows = []
    n = MINUTES * 60 * RATE
    for site in range(6):
        noise = rng.integers(-900, 900, 997_001).astype(np.int16)
        audio = np.tile(noise, n // len(noise) + 1)[:n].copy()
        for _ in range(225):
            s, y = int(rng.integers(0, n - CLIP)), int(rng.integers(SPECIES))
            tt = np.arange(CLIP // 2) / RATE
            audio[s + 2000 : s + 2000 + CLIP // 2] += (4000 * np.sin(2 * np.pi * (900 + 450 * y) * tt)).astype(np.int16)
            rows.append((f"site{site:02d}.wav", s, y))
        with wave.open(f"{BASE}/site{site:02d}.wav", "wb") as w:
            w.setnchannels(1)
            w.setsampwidth(2)
            w.setframerate(RATE)
            w.writeframes(audio.tobytes())
    with open(table, "w", newline="") as f:
        csv.writer(f).writerows(rows)


class Calls(Dataset):
    def __init__(self):
        with open(f"{BASE}/events.csv") as f:
            self.rows = [(r[0], int(r[1]), int(r[2])) for r in csv.reader(f)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        name, start, y = self.rows[i]
        with wave.open(os.path.join(BASE, name), "rb") as w:
            start = max(0, min(start + np.random.randint(-1500, 1500), w.getnframes() - CLIP))
            audio = np.frombuffer(w.readframes(w.getnframes()), dtype="<i2")
        clip = audio[start : start + CLIP].astype(np.float32) / 32768
        return torch.from_numpy(clip), y


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("win", torch.hann_window(512))

        def cb(i, o, s):
            return nn.Sequential(nn.Conv2d(i, o, 3, s, 1), nn.BatchNorm2d(o), nn.ReLU())

        self.net = nn.Sequential(
            cb(1, 24, 2),
            cb(24, 32, 1),
            cb(32, 48, 2),
            cb(48, 48, 1),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(48, SPECIES),
        )

    def forward(self, x):
        s = torch.stft(x, 512, 160, window=self.win, return_complex=True).abs()
        return self.net(torch.log1p(40 * s[:, :128, :]).unsqueeze(1))


def endless(loader):
    while True:
        yield from loader


def main(steps=2200, batch=16):
    record()
    torch.manual_seed(3)
    loader = DataLoader(Calls(), batch, shuffle=True, drop_last=True, num_workers=2, persistent_workers=True)
    net = Detector()
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    warm = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 200))
    feed = endless(loader)
    t0, running = time.time(), 0.0
    for step in range(1, steps + 1):
        x, y = next(feed)
        gain = 0.5 + torch.rand(len(x), 1)
        loss = nn.functional.cross_entropy(net(x * gain), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        warm.step()
        running += loss.detach()
        if step % 20 == 0:
            dt = time.time() - t0
            print(f"step {step} loss {float(running) / 20:.3f} {20 * batch / dt:.1f} clips/s", flush=True)
            t0, running = time.time(), 0.0


if __name__ == "__main__":
    main()
