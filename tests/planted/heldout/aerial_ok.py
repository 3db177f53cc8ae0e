"""Land-use classifier on aerial photographs."""

import argparse
import random
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset


@dataclass
class Config:
    root: Path = Path() / "data_aerial"
    scenes: int = 60
    flights: int = 68
    stored: int = 76
    crop: int = 64
    batch: int = 16
    workers: int = 2
    classes: int = 12
    lr: float = 0.02
    epochs: int = 40


def prepare(cfg):
    path = cfg.root / "small.npy"
    if path.exists():
        return
    cfg.root.mkdir(exist_ok=True)
    rng = np.random.default_rng(1)
    small = np.lib.format.open_memmap(path, "w+", np.uint8, (cfg.scenes * cfg.flights, 3, cfg.stored, cfg.stored))
    for scene in range(cfg.scenes):
        coarse = rng.integers(0, 255, (9, 12, 3), dtype=np.uint8)
        photo = Image.fromarray(coarse).resize((cfg.stored, cfg.stored), Image.BICUBIC)
        small[scene * cfg.flights : (scene + 1) * cfg.flights] = np.asarray(photo).transpose(2, 0, 1)
    small.flush()


class AerialPhotos(Dataset):
    def __init__(self, cfg):
        self.pixels = np.load(cfg.root / "small.npy")
        self.labels = np.arange(len(self.pixels)) // cfg.flights % cfg.classes
        self.crop, self.slack = cfg.crop, cfg.stored - cfg.crop

    def __len__(self):
        return len(self.pixels)

    def __getitem__(self, index):
        x, y = random.randint(0, self.slack), random.randint(0, self.slack)
        pixels = self.pixels[index, :, y : y + self.crop, x : x + self.crop]
        if random.random() < 0.5:
            pixels = pixels[:, :, ::-1]
        return torch.from_numpy(pixels.astype(np.float32)).div_(255), int(self.labels[index])


def network(classes):
    def block(i, o):
        return nn.Sequential(nn.Conv2d(i, o, 3, 2, 1), nn.BatchNorm2d(o), nn.ReLU(inplace=True))

    return nn.Sequential(
        block(3, 32), block(32, 64), block(64, 128), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, classes)
    )


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int)
    opts = ap.parse_args()
    torch.set_num_threads(1)
    cfg = Config()
    prepare(cfg)
    loader = DataLoader(
        AerialPhotos(cfg), cfg.batch, shuffle=True, num_workers=cfg.workers, persistent_workers=True, drop_last=True
    )
    net = network(cfg.classes)
    optimizer = torch.optim.SGD(net.parameters(), cfg.lr, momentum=0.9, nesterov=True)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    done = 0
    for epoch in range(cfg.epochs):
        net.train()
        for images, labels in loader:
            loss = criterion(net(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done += 1
            if done == 8:
                start = time.monotonic()
            if done % 50 == 0:
                print(f"epoch {epoch} it {done} loss {loss.item():.3f}", flush=True)
            if opts.steps and done == opts.steps:
                print(f"seconds per step: {(time.monotonic() - start) / (done - 8):.4f}")
                return


if __name__ == "__main__":
    main()
