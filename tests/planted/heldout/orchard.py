"""Ripe, unripe or rotten: classifies orchard photographs from random crops."""

import argparse
import io
import pathlib
import random
import time

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler

STATES = 3


def photograph(folder: pathlib.Path, count: int) -> None:
    """All photographs go into one file, with their offsets next to it."""
    if (folder / "offsets.npy").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(77)
    grain = rng.integers(-18, 19, (480, 640, 3), dtype=np.int16)
    offsets, labels = [0], rng.integers(0, STATES, count)
    with open(folder / "photos.bin", "wb") as out:
        for i in range(count):
            coarse = rng.integers(30, 190, (30, 40, 3), dtype=np.uint8)
            coarse[..., labels[i]] += 40
            big = np.asarray(Image.fromarray(coarse).resize((640, 480), Image.Resampling.BICUBIC), dtype=np.int16)
            noisy = big + np.roll(grain, int(rng.integers(0, 480)), axis=0)
            buffer = io.BytesIO()
            Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=92)
            out.write(buffer.getvalue())
            offsets.append(offsets[-1] + buffer.tell())
    np.save(folder / "labels.npy", labels)
    np.save(folder / "offsets.npy", np.asarray(offsets))


class Orchard(Dataset):
    def __init__(self, folder: pathlib.Path, side: int):
        self.side = side
        self.labels = np.load(folder / "labels.npy")
        self.offsets = np.load(folder / "offsets.npy")
        self.photos = (folder / "photos.bin").read_bytes()

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        jpeg = self.photos[self.offsets[i] : self.offsets[i + 1]]
        image = Image.open(io.BytesIO(jpeg)).convert("RGB")
        size = random.uniform(240, 460)
        left, top = random.uniform(0, image.width - size - 1), random.uniform(0, image.height - size - 1)
        image = image.resize(
            (self.side, self.side), Image.Resampling.BILINEAR, box=(left, top, left + size, top + size)
        )
        if random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
        return {"pixels": pixels.contiguous(), "state": int(self.labels[i])}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("orchard_data"))
    ap.add_argument("--count", type=int, default=400)
    ap.add_argument("--views", type=int, default=2400, help="crops per epoch")
    ap.add_argument("--epochs", type=int, default=6)
    args = ap.parse_args()
    torch.manual_seed(19)
    photograph(args.folder, args.count)

    data = Orchard(args.folder, 96)
    loader = DataLoader(
        data,
        batch_size=16,
        sampler=RandomSampler(data, replacement=True, num_samples=args.views),
        num_workers=2,
        persistent_workers=True,
    )
    net = nn.Sequential(
        nn.Conv2d(3, 16, 5, stride=4, padding=2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, STATES),
    )
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    torch.set_num_threads(1)
    for epoch in range(args.epochs):
        t0, right, loss = time.time(), 0, None
        for batch in loader:
            guess = net(batch["pixels"].float().div_(255))
            loss = nn.functional.cross_entropy(guess, batch["state"])
            opt.zero_grad()
            loss.backward()
            opt.step()
            right += int((guess.argmax(1) == batch["state"]).sum())
        print(
            f"epoch {epoch}: loss {loss.item():.4f}, {right / args.views:.1%} right, {time.time() - t0:.1f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
