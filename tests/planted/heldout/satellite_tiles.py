"""Land-cover classification of aerial tiles (10 classes). Tiles are JPEGs in <root>/<class>/<n>.jpg."""

import argparse
import glob
import io
import os
import random
import shutil
import tempfile

import numpy as np
import simplejpeg
import torch
import torch.nn as nn
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

CLASSES = ["water", "forest", "crop", "urban", "bare", "road", "snow", "wetland", "quarry", "park"]


def make_tiles(root, n, side=960):
    rng = np.random.default_rng(7)
    yy, xx = np.mgrid[0 : 2 * side, 0 : 2 * side].astype(np.float32) / side
    grain = rng.integers(0, 12, (2 * side, 2 * side, 1))
    for c, name in enumerate(CLASSES):
        os.makedirs(os.path.join(root, name), exist_ok=True)
        wave = np.sin(6.28 * (xx * (c + 1) + yy * (10 - c)))[..., None] * 60 + 120
        canvas = np.clip(wave + np.array([c * 7, 40 - c * 4, c * 3]) + grain, 0, 255).astype(np.uint8)
        for i in range(n // len(CLASSES)):
            x, y = rng.integers(0, side, 2)
            jpg = simplejpeg.encode_jpeg(
                np.ascontiguousarray(canvas[y : y + side, x : x + side]), quality=88, colorspace="RGB"
            )
            with open(os.path.join(root, name, f"{i:05d}.jpg"), "wb") as f:
                f.write(jpg)


class Tiles(Dataset):
    def __init__(self, root, out=96, fixed=False):
        self.files = sorted(glob.glob(os.path.join(root, "*", "*.jpg")))
        self.labels = [CLASSES.index(os.path.basename(os.path.dirname(f))) for f in self.files]
        self.out, self.fixed = out, fixed

    def __len__(self):
        return len(self.files)

    def load(self, path):
        with open(path, "rb") as f:
            raw = f.read()
        if self.fixed:  # let libjpeg decode at a fraction of the size
            return Image.fromarray(
                simplejpeg.decode_jpeg(
                    raw, min_height=120, min_width=120, min_factor=1.5, fastdct=True, fastupsample=True
                )
            )
        return Image.open(io.BytesIO(raw)).convert("RGB")

    def __getitem__(self, i):
        img = self.load(self.files[i])
        w, h = img.size
        s = random.uniform(0.5, 1.0)
        cw, ch = int(w * s), int(h * s)
        x, y = random.randint(0, w - cw), random.randint(0, h - ch)
        img = img.resize((self.out, self.out), Image.BILINEAR, box=(x, y, x + cw, y + ch))
        if random.random() < 0.5:
            img = img.transpose(Image.FLIP_LEFT_RIGHT)
        a = np.asarray(img, dtype=np.float32) / 255.0 * random.uniform(0.8, 1.2)
        return torch.from_numpy(a.transpose(2, 0, 1).copy()), self.labels[i]


def build_model():
    return nn.Sequential(
        nn.Conv2d(3, 16, 5, stride=4, padding=2),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, len(CLASSES)),
    )


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--data", default=None)
    ap.add_argument("--n", type=int, default=480)
    ap.add_argument("--epochs", type=int, default=36)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.set_num_threads(1)  # the two loader processes have the cores

    root = args.data or tempfile.mkdtemp(prefix="tiles_")
    try:
        if not glob.glob(os.path.join(root, "*", "*.jpg")):
            make_tiles(root, args.n)
        loader = DataLoader(
            Tiles(root, fixed=args.fixed),
            batch_size=args.batch,
            shuffle=True,
            num_workers=2,
            persistent_workers=True,
            drop_last=True,
        )
        model, crit = build_model(), nn.CrossEntropyLoss()
        opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        for epoch in range(args.epochs):
            running = torch.zeros(())
            for x, y in tqdm(loader, desc=f"epoch {epoch}", mininterval=2):
                loss = crit(model(x), y)
                opt.zero_grad()
                loss.backward()
                opt.step()
                running += loss.detach()
            print(f"epoch {epoch} loss {running.item() / len(loader):.4f}")
    finally:
        if args.data is None:
            shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
