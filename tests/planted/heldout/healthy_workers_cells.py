"""Cell types from microscopy crops: PNG decoding in one worker, well ahead of a conv net on the CPU."""

import io
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIDE, COUNT, BATCH, TYPES, LIMIT = 48, 1200, 24, 4, 90
_ = "--fixed" in sys.argv  # accepted, changes nothing


def write_crops(folder):
    rng = np.random.default_rng(2)
    y, x = np.mgrid[:SIDE, :SIDE] - SIDE / 2
    for i in range(COUNT):
        kind = i % TYPES
        disc = 160 * (np.hypot(x, y * (1 + 0.3 * kind)) < 16) + rng.integers(0, 60, (SIDE, SIDE))
        buffer = io.BytesIO()
        Image.fromarray(disc.astype(np.uint8)).save(buffer, "png")
        (folder / f"{i:05d}_{kind}.png").write_bytes(buffer.getvalue())


class Crops(Dataset):
    def __init__(self, folder):
        self.paths = sorted(folder.glob("*.png"))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        with Image.open(self.paths[i]) as image:
            pixels = np.asarray(image, dtype=np.float32) / 255
        if torch.rand(()) < 0.5:
            pixels = pixels[:, ::-1].copy()
        return torch.from_numpy(pixels)[None], int(self.paths[i].stem[-1])


class CellNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 24, 3, padding=1),
            nn.BatchNorm2d(24),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(24, 48, 3, padding=1),
            nn.BatchNorm2d(48),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(48, 96, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.head = nn.Linear(96, TYPES)

    def forward(self, x):
        return self.head(self.features(x))


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)  # the other core belongs to the worker
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_crops(folder)
        loader = DataLoader(
            Crops(folder),
            BATCH,
            shuffle=True,
            num_workers=1,
            persistent_workers=True,
            prefetch_factor=6,
            drop_last=True,
        )
        model, start = CellNet(), time.time()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
        for epoch in range(100):
            t, losses = time.time(), []
            for x, y in loader:
                loss = nn.functional.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())
            print(
                f"epoch {epoch}: loss {torch.stack(losses).mean():.4f}, {(time.time() - t) / len(loader) * 1e3:.1f} ms/step",
                flush=True,
            )
            torch.save(model.state_dict(), folder / "cells.pt")
            if time.time() - start > LIMIT:
                break


if __name__ == "__main__":
    main()
