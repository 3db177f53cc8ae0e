"""Fine-grained leaf classification on scanned herbarium sheets."""

import os
import random
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from PIL import Image, ImageDraw
from torch.utils.data import DataLoader, Dataset, RandomSampler

ROOT = "data_herbarium"
N_SHEETS = 150
N_SPECIES = 12
CROP = 96


def make_sheets():
    os.makedirs(os.path.join(ROOT, "sheets"), exist_ok=True)
    done = os.path.join(ROOT, "labels.txt")
    if os.path.exists(done):
        return
    rng = np.random.default_rng(3)
    labels = []
    for i in range(N_SHEETS):
        species = int(rng.integers(N_SPECIES))
        small = rng.integers(150, 235, size=(90, 68, 3), dtype=np.uint8)
        im = Image.fromarray(small).resize((1360, 1800), Image.BILINEAR)
        d = ImageDraw.Draw(im)
        for _ in range(40 + 6 * species):
            x, y = int(rng.integers(1360)), int(rng.integers(1800))
            r = int(rng.integers(10, 70))
            d.ellipse((x, y, x + r, y + r * (1 + species % 3)), fill=(40 + 10 * species, 130 - 6 * species, 50))
        im.save(os.path.join(ROOT, "sheets", f"{i:04d}.jpg"), quality=92)
        labels.append(species)
    with open(done, "w") as f:
        f.write("\n".join(map(str, labels)))


def make_small(side=288):
    """Random crops never need more than `side` pixels, so keep a reduced copy."""
    out = os.path.join(ROOT, f"sheets_{side}")
    if os.path.isdir(out):
        return out
    tmp = out + ".part"
    os.makedirs(tmp, exist_ok=True)
    for i in range(N_SHEETS):
        with Image.open(os.path.join(ROOT, "sheets", f"{i:04d}.jpg")) as im:
            im.draft("RGB", (side, side))
            w, h = im.size
            k = side / min(w, h)
            im.convert("RGB").resize((round(w * k), round(h * k)), Image.BICUBIC).save(
                os.path.join(tmp, f"{i:04d}.jpg"), quality=92
            )
    os.rename(tmp, out)
    return out


class Sheets(Dataset):
    def __init__(self, folder):
        with open(os.path.join(ROOT, "labels.txt")) as f:
            self.labels = [int(x) for x in f.read().split()]
        self.paths = [os.path.join(folder, f"{i:04d}.jpg") for i in range(len(self.labels))]

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        with Image.open(self.paths[i]) as im:
            im = im.convert("RGB")
        w, h = im.size
        side = int(min(w, h) * random.uniform(0.45, 1.0))
        x0, y0 = random.randint(0, w - side), random.randint(0, h - side)
        im = im.resize((CROP, CROP), Image.BILINEAR, box=(x0, y0, x0 + side, y0 + side))
        if random.random() < 0.5:
            im = im.transpose(Image.FLIP_LEFT_RIGHT)
        x = torch.from_numpy(np.array(im)).permute(2, 0, 1)
        return x, self.labels[i]


class Block(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.c1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.b1 = nn.BatchNorm2d(cout)
        self.c2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.b2 = nn.BatchNorm2d(cout)
        self.sc = nn.Conv2d(cin, cout, 1, stride, bias=False)

    def forward(self, x):
        y = F.relu(self.b1(self.c1(x)))
        return F.relu(self.b2(self.c2(y)) + self.sc(x))


def build():
    return nn.Sequential(
        nn.Conv2d(3, 32, 5, 2, 2),
        nn.ReLU(),
        Block(32, 48, 1),
        Block(48, 96, 2),
        Block(96, 128, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, N_SPECIES),
    )


def main():
    torch.manual_seed(0)
    make_sheets()
    ds = Sheets(make_small())
    sampler = RandomSampler(ds, replacement=True, num_samples=480)
    loader = DataLoader(ds, batch_size=12, sampler=sampler, num_workers=2, drop_last=True, persistent_workers=True)
    net = build()
    opt = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
    epochs = 25
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, epochs)
    mean = torch.tensor([0.5, 0.5, 0.5]).view(1, 3, 1, 1)
    for epoch in range(epochs):
        t0, n, tot = time.time(), 0, 0.0
        for x, y in loader:
            x = x.float().div_(255).sub_(mean)
            loss = F.cross_entropy(net(x), y, label_smoothing=0.1)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            tot += loss.detach()
            n += len(y)
            if n % 120 == 0:
                print(f"  {n}/{len(sampler)} {n / (time.time() - t0):.1f} samples/s", flush=True)
        sched.step()
        dt = time.time() - t0
        print(f"epoch {epoch} loss {float(tot) * 12 / n:.3f} {dt:.1f}s {n / dt:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
