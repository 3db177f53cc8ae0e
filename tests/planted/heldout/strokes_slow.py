"""Fine-tunes a small sketch recogniser on one writer's strokes."""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

FOLDER = Path() / "data_strokes"


class Strokes(Dataset):
    def __init__(self, folder, jitter=0.05):
        self.folder, self.jitter, self.ink = folder, jitter, None
        self.size = len(np.load(folder / "label.npy", mmap_mode="r"))

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        if self.ink is None:
            self.ink = np.load(self.folder / "ink.npy", mmap_mode="r")
            self.label = np.load(self.folder / "label.npy")
        ink = torch.from_numpy(np.array(self.ink[i]))
        return ink + self.jitter * torch.randn(1, ink.shape[1]), int(self.label[i])


class Recogniser(nn.Module):
    def __init__(self, classes=40):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(8, 64, 7, 2, 3),
            nn.ReLU(),
            nn.Conv1d(64, 128, 5, 2, 2),
            nn.ReLU(),
            nn.Conv1d(128, 128, 5, 2, 2),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(1),
            nn.Flatten(),
            nn.Linear(128, classes),
        )

    def forward(self, ink):
        return self.net(ink)


def record_writer():
    if (FOLDER / "label.npy").exists():
        return
    FOLDER.mkdir(exist_ok=True)
    rng = np.random.default_rng(8)
    np.save(FOLDER / "ink.npy", rng.standard_normal((2880, 8, 256), dtype=np.float32))
    np.save(FOLDER / "label.npy", rng.integers(0, 40, 2880))


@torch.no_grad()
def accuracy(model, loader):
    hits = [(model(x).argmax(1) == y).float().mean() for x, y in loader]
    return torch.stack(hits).mean().item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=None)
    ap.add_argument("--epochs", type=int, default=300)
    ap.add_argument("--workers", type=int, default=2)
    ns = ap.parse_args()
    torch.set_num_threads(1)
    record_writer()
    train = DataLoader(
        Strokes(FOLDER), batch_size=48, shuffle=True, num_workers=ns.workers, multiprocessing_context="spawn"
    )
    valid = DataLoader(TensorDataset(torch.randn(64, 8, 256), torch.randint(0, 40, (64,))), batch_size=64)
    model = Recogniser()
    opt = torch.optim.Adam(model.parameters(), lr=2e-4)
    step = 0
    for epoch in range(ns.epochs):
        model.train()
        for ink, label in train:
            loss = F.cross_entropy(model(ink), label)
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            if step == 4:
                clock = time.perf_counter()
            if ns.steps and step >= ns.steps:
                print(f"seconds per step {(time.perf_counter() - clock) / (step - 4):.4f}")
                return
        model.eval()
        print(f"epoch {epoch} loss {loss.item():.3f} acc {accuracy(model, valid):.3f}", flush=True)


if __name__ == "__main__":
    main()
