"""Find scratches on small grey pictures of metal: a tiny conv net, few pictures, many epochs."""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stoker import sim


class Plates(Dataset):
    def __init__(self, path):
        self.path = path
        self.labels = np.load(path / "plate_labels.npy")
        self.pictures = None

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        if self.pictures is None:
            self.pictures = np.load(self.path / "plates.npy", mmap_mode="r")
        picture = self.pictures[i].astype(np.float32) / 255
        if np.random.rand() < 0.5:
            picture = picture[:, ::-1]
        return np.ascontiguousarray(picture)[None], self.labels[i]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 5, stride=4)
        self.conv2 = nn.Conv2d(4, 8, 3, stride=2)
        self.out = nn.Linear(8, 2)

    def forward(self, x):
        x = torch.relu(self.conv1(x))
        x = torch.relu(self.conv2(x))
        return self.out(x.mean((2, 3)))


def generate(path):
    path.mkdir(parents=True, exist_ok=True)
    if not (path / "plate_labels.npy").exists():
        rng = np.random.default_rng(11)
        np.save(path / "plates.npy", rng.integers(0, 256, (832, 48, 48), dtype=np.uint8))
        np.save(path / "plate_labels.npy", rng.integers(0, 2, 832))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("path", type=Path)
    ap.add_argument("--epochs", type=int, default=300)
    ap.add_argument("--fixed", action="store_true")
    a = ap.parse_args()
    generate(a.path)

    loader = DataLoader(
        Plates(a.path),
        batch_size=32,
        shuffle=True,
        num_workers=2,
        multiprocessing_context="spawn",
        persistent_workers=a.fixed,
        drop_last=True,
    )
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, a.epochs)
    device = sim.Device(forward=30e-3, backward=48e-3, optimizer=3e-3)
    model = device.place(model, optimizer)
    criterion = nn.CrossEntropyLoss()

    for epoch in range(a.epochs):
        start = time.time()
        correct = torch.zeros((), device=device)
        for x, y in loader:
            x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            out = model(x)
            loss = criterion(out, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            correct += (out.argmax(1) == y).sum()
        schedule.step()
        accuracy = correct.item() / (len(loader) * 32)
        print(f"epoch {epoch}: accuracy {accuracy:.3f}, {time.time() - start:.2f} s", flush=True)


if __name__ == "__main__":
    main()
