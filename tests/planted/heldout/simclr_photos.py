"""SimCLR on a folder of photographs. Two random views per photo, NT-Xent loss."""

import argparse
import io
import random
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageEnhance, ImageFilter
from torch import nn
from torch.utils.data import DataLoader, Dataset

VIEW = 48


def build(root: Path):
    big, small = root / "photos", root / "photos_160"
    if (root / "READY").exists():
        return big, small
    big.mkdir(parents=True, exist_ok=True)
    small.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for i in range(256):
        base = Image.fromarray(rng.integers(0, 255, (24, 32, 3), dtype=np.uint8))
        im = base.resize((1280, 960), Image.BICUBIC)
        im.paste(base.resize((320, 240)), (int(rng.integers(0, 900)), int(rng.integers(0, 700))))
        im.save(big / f"{i:04d}.jpg", quality=90)
        im.resize((160, 120), Image.BILINEAR).save(small / f"{i:04d}.jpg", quality=90)
    (root / "READY").touch()
    return big, small


class TwoViews(Dataset):
    def __init__(self, folder):
        self.files = sorted(Path(folder).glob("*.jpg"))

    def __len__(self):
        return len(self.files)

    def view(self, im):
        w, h = im.size
        side = int(min(w, h) * random.uniform(0.3, 1.0))
        x, y = random.randint(0, w - side), random.randint(0, h - side)
        out = im.resize((VIEW, VIEW), Image.BILINEAR, box=(x, y, x + side, y + side))
        if random.random() < 0.5:
            out = out.transpose(Image.FLIP_LEFT_RIGHT)
        out = ImageEnhance.Color(out).enhance(random.uniform(0.5, 1.5))
        out = ImageEnhance.Brightness(out).enhance(random.uniform(0.6, 1.4))
        if random.random() < 0.2:
            out = out.filter(ImageFilter.GaussianBlur(1))
        return torch.from_numpy(np.array(out)).permute(2, 0, 1)

    def __getitem__(self, i):
        with open(self.files[i], "rb") as f:
            im = Image.open(io.BytesIO(f.read())).convert("RGB")
        return self.view(im), self.view(im)


class Encoder(nn.Module):
    def __init__(self, width=24, dim=64):
        super().__init__()
        layers, c = [], 3
        for m in (1, 2, 4):
            layers += [nn.Conv2d(c, width * m, 3, 2, 1), nn.BatchNorm2d(width * m), nn.ReLU()]
            c = width * m
        self.trunk = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Sequential(nn.Linear(c, c), nn.ReLU(), nn.Linear(c, dim))

    def forward(self, x):
        return F.normalize(self.head(self.trunk(x)), dim=1)


def nt_xent(a, b, tau=0.2):
    z = torch.cat([a, b])
    sim = z @ z.t() / tau
    sim.fill_diagonal_(-1e9)
    n = len(a)
    target = torch.cat([torch.arange(n, 2 * n), torch.arange(n)])
    return F.cross_entropy(sim, target)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("data", type=Path)
    ap.add_argument("--epochs", type=int, default=300)
    ap.add_argument("--workers", type=int, default=2)
    ap.add_argument("--fixed", action="store_true")
    opts = ap.parse_args()

    big, small = build(opts.data)
    dataset = TwoViews(small if opts.fixed else big)
    loader = DataLoader(
        dataset,
        batch_size=16,
        shuffle=True,
        drop_last=True,
        num_workers=opts.workers,
        persistent_workers=True,
        prefetch_factor=4,
    )
    net = Encoder()
    optim = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    for epoch in range(opts.epochs):
        start, n = time.perf_counter(), 0
        for a, b in loader:
            loss = nt_xent(net(a.float() / 255), net(b.float() / 255))
            optim.zero_grad(set_to_none=True)
            loss.backward()
            optim.step()
            n += a.size(0)
        print(f"[{epoch:03d}] loss={loss.item():.3f} {n / (time.perf_counter() - start):.1f} samples/s", flush=True)
