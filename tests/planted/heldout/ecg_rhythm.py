"""Arrhythmia classifier on 12-lead ECG; the excerpt grows during training (short rhythms first)."""

import time
from pathlib import Path

import numpy as np
import torch
import torch._dynamo
from torch import nn

torch._dynamo.config.recompile_limit = 512
torch._dynamo.config.accumulated_recompile_limit = 1024

FILE = Path("data_ecg_rhythm/ecg.npy")
LEADS, SAMPLES, CLASSES, BATCH = 12, 700, 6, 16
EPOCHS, STEPS = 3, 96
SHORTEST, GROWTH, EVERY = 240, 8, 8


def recordings():
    if not FILE.exists():
        FILE.parent.mkdir(exist_ok=True)
        np.save(FILE, np.random.default_rng(0).normal(size=(1200, LEADS, SAMPLES)).astype(np.float32))
    return torch.from_numpy(np.load(FILE))


class Residual(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv1d(c, c, 5, padding=2), nn.Conv1d(c, c, 5, padding=2)
        self.norm1, self.norm2 = nn.GroupNorm(4, c), nn.GroupNorm(4, c)

    def forward(self, x):
        return x + self.conv2(self.norm2(self.conv1(self.norm1(x).relu()).relu()))


class RhythmNet(nn.Module):
    def __init__(self, c=32, depth=3):
        super().__init__()
        self.stem = nn.Conv1d(LEADS, c, 9, stride=4, padding=4)
        self.blocks = nn.ModuleList(Residual(c) for _ in range(depth))
        self.attend = nn.Linear(c, 1)
        self.out = nn.Linear(c, CLASSES)

    def forward(self, x):
        h = self.stem(x)
        for block in self.blocks:
            h = block(h)
        h = h.transpose(1, 2)
        return self.out((self.attend(h).softmax(1) * h).sum(1))


def excerpt(data, length, generator):
    """A random batch; every excerpt of it starts at the same random sample."""
    rows = torch.randint(0, len(data), (BATCH,), generator=generator)
    start = torch.randint(0, SAMPLES - length + 1, (), generator=generator).item()
    return data[rows, :, start : start + length], rows % CLASSES


def main():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    data = recordings()
    model = RhythmNet()
    fast = torch.compile(model, backend="aot_eager", dynamic=False)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step = 0
    for epoch in range(EPOCHS):
        t0 = time.perf_counter()
        total = torch.zeros(())
        for _ in range(STEPS):
            x, y = excerpt(data, SHORTEST + GROWTH * (step // EVERY), generator)
            loss = nn.functional.cross_entropy(fast(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.detach()
            step += 1
        print(f"epoch {epoch}: {total.item() / STEPS:.4f}, excerpt now {x.shape[-1]} samples")
        print(f"epoch_seconds {time.perf_counter() - t0:.3f}", flush=True)


if __name__ == "__main__":
    main()
