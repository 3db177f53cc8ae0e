"""Land-use classifier on aerial photographs."""

import argparse
import io
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
    crop: int = 64
    batch: int = 16
    workers: int = 2
    classes: int = 12
    lr: float = 0.02
    epochs: int = 40


def prepare(cfg):
    folder = cfg.root / "photos"
    if folder.exists() and len(list(folder.iterdir())) == cfg.scenes * cfg.flights:
        return
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(1)
    for scene in range(cfg.scenes):
        coarse = rng.integers(0, 255, (9, 12, 3), dtype=np.uint8)
        photo = Image.fromarray(coarse).resize((1600, 1200), Image.BICUBIC)
        buf = io.BytesIO()
        photo.save(buf, "JPEG", quality=60, optimize=True)
        for flight in range(cfg.flights):
            label = scene % cfg.classes
            (folder / f"{label:02d}_{scene:03d}_{flight:03d}.jpg").write_bytes(buf.getvalue())


class AerialPhotos(Dataset):
    def __init__(self, cfg):
        self.files = sorted((cfg.root / "photos").glob("*.jpg"))
        self.crop = cfg.crop

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        path = self.files[index]
        photo = Image.open(path).convert("RGB")
        side = random.randint(600, 1200)
        x, y = random.randint(0, photo.width - side), random.randint(0, photo.height - side)
        photo = photo.resize((self.crop, self.crop), Image.BILINEAR, box=(x, y, x + side, y + side))
        if random.random() < 0.5:
            photo = photo.transpose(Image.FLIP_LEFT_RIGHT)
        pixels = torch.from_numpy(np.array(photo)).permute(2, 0, 1).float().div_(255)
        return pixels, int(path.name[:2])


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
