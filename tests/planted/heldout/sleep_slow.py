"""Sleep staging from overnight polysomnography. One .npy per night, samples x channels, int16."""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset

NIGHTS_DIR = Path() / "data_sleep"
CHANNELS, SAMPLES, EPOCH_LEN, NIGHTS = 32, 640_000, 512, 7


def simulate():
    NIGHTS_DIR.mkdir(exist_ok=True)
    rng = np.random.default_rng(6)
    for n in range(NIGHTS):
        path = NIGHTS_DIR / f"night{n}.npy"
        if not path.exists():
            np.save(path, rng.integers(-2000, 2000, (SAMPLES, CHANNELS), dtype=np.int16))


class SleepEpochs(Dataset):
    def __init__(self, files):
        self.files = files
        self.per_night = SAMPLES // EPOCH_LEN

    def __len__(self):
        return len(self.files) * self.per_night

    def __getitem__(self, i):
        night, k = divmod(i, self.per_night)
        recording = np.load(self.files[night])
        x = recording[k * EPOCH_LEN : (k + 1) * EPOCH_LEN].T.astype(np.float32) / 500.0
        return torch.from_numpy(x), (k // 40) % 5


class Stager(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv1d(CHANNELS, 96, 9, stride=2, padding=4),
            nn.ReLU(),
            nn.Conv1d(96, 128, 7, stride=2, padding=3),
            nn.ReLU(),
            nn.Conv1d(128, 128, 5, stride=2, padding=2),
            nn.ReLU(),
        )
        self.head = nn.Linear(128, 5)

    def forward(self, x):
        return self.head(self.features(x).mean(2))


def evaluate(model, loader):
    model.eval()
    with torch.no_grad():
        right = sum((model(x).argmax(1) == y).sum().item() for x, y in loader)
    model.train()
    return right / len(loader.dataset)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=0)
    ap.add_argument("--batch", type=int, default=12)
    opt = ap.parse_args()
    torch.set_num_threads(1)
    simulate()
    everything = SleepEpochs(sorted(NIGHTS_DIR.glob("night*.npy")))
    held_out = torch.utils.data.Subset(everything, range(0, len(everything), 1000))
    train = DataLoader(everything, opt.batch, shuffle=True, num_workers=2, persistent_workers=True, drop_last=True)
    val = DataLoader(held_out, opt.batch)
    model = Stager()
    optimizer = optim.RMSprop(model.parameters(), lr=1e-4)
    step = 0
    for epoch in range(50):
        for x, y in train:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step == 8:
                t0 = time.time()
            if step % 100 == 0:
                print(f"step {step} loss {loss.item():.3f}", flush=True)
            if step == opt.steps:
                raise SystemExit(f"seconds per step {(time.time() - t0) / (step - 8):.4f}")
        print(f"epoch {epoch} held-out accuracy {evaluate(model, val):.3f}", flush=True)
