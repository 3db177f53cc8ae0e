"""Anchor-free detector on synthetic scenes (object = coloured rectangle)."""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.multiprocessing.set_sharing_strategy("file_descriptor")
DATA = Path("data") / "detect_targets"
FIELDS = ("boxes", "labels", "area", "iscrowd", "keypoints", "visibility", "depth", "track")


def build(n=1200, size=48):
    if not (DATA / "images.npy").exists():
        DATA.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(11)
        imgs = rng.integers(0, 90, (n, 3, size, size), dtype=np.uint8)
        boxes = rng.random((n, 6, 4)).astype(np.float32)
        boxes[..., 2:] = 0.1 + 0.3 * boxes[..., 2:]
        boxes[..., :2] *= 0.6
        labels = rng.integers(1, 5, (n, 6))
        for i in range(n):
            for b, l in zip(boxes[i], labels[i]):
                x, y, w, h = (b * size).astype(int)
                imgs[i, l % 3, y : y + h + 1, x : x + w + 1] = 120 + 30 * l
        np.save(DATA / "boxes.npy", boxes)
        np.save(DATA / "labels.npy", labels)
        np.save(DATA / "images.npy", imgs)


class Scenes(Dataset):
    def __init__(self):
        self.images = torch.from_numpy(np.load(DATA / "images.npy"))
        self.boxes = torch.from_numpy(np.load(DATA / "boxes.npy"))
        self.labels = torch.from_numpy(np.load(DATA / "labels.npy"))
        n = len(self.images)
        self.extra = {
            "area": self.boxes[..., 2] * self.boxes[..., 3],
            "iscrowd": torch.zeros(n, 6, dtype=torch.uint8),
            "keypoints": torch.rand(n, 6, 5, 2),
            "visibility": torch.ones(n, 6, 5, dtype=torch.uint8),
            "depth": torch.rand(n, 6),
            "track": torch.arange(n * 6).view(n, 6),
        }

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        target = {"boxes": self.boxes[i], "labels": self.labels[i]}
        target.update({k: v[i] for k, v in self.extra.items()})
        return self.images[i], target


def collate(batch):
    images = torch.stack([b[0] for b in batch])
    keys = list(batch[0][1])
    flat = [
        torch.stack([b[1][k] for b in batch]).flatten(2)
        if batch[0][1][k].dim() > 1
        else torch.stack([b[1][k] for b in batch]).unsqueeze(2)
        for k in keys
    ]
    packed = torch.cat([f.float() for f in flat], 2)
    return images, packed, [(k, f.shape[2]) for k, f in zip(keys, flat)]


class Net(nn.Module):
    def __init__(self, c=24, classes=5):
        super().__init__()

        def cb(i, o, s):
            return nn.Sequential(nn.Conv2d(i, o, 3, s, 1), nn.GroupNorm(4, o), nn.SiLU())

        self.stem = nn.Sequential(cb(3, c, 2), cb(c, c, 1), cb(c, 2 * c, 2), cb(2 * c, 2 * c, 1))
        self.cls = nn.Conv2d(2 * c, classes, 1)
        self.box = nn.Conv2d(2 * c, 4, 1)

    def forward(self, x):
        h = self.stem(x)
        return self.cls(h), self.box(h)


def loss_fn(cls, box, targets):
    boxes = targets["boxes"]
    labels = targets["labels"].squeeze(2).long()
    g = cls.shape[-1]
    cx = ((boxes[..., 0] + boxes[..., 2] / 2) * g).long().clamp_(0, g - 1)
    cy = ((boxes[..., 1] + boxes[..., 3] / 2) * g).long().clamp_(0, g - 1)
    b = torch.arange(len(boxes))[:, None].expand_as(cx)
    tgt = torch.zeros(len(boxes), g, g, dtype=torch.long)
    tgt[b, cy, cx] = labels
    return F.cross_entropy(cls, tgt) + F.l1_loss(box.permute(0, 2, 3, 1)[b, cy, cx], boxes)


def main(args):
    torch.set_num_threads(1)
    build()
    loader = DataLoader(
        Scenes(),
        args.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=2,
        collate_fn=collate,
        persistent_workers=True,
    )
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    n, t0 = 0, 0.0
    for epoch in range(args.epochs):
        tot = 0.0
        for images, packed, layout in loader:
            targets = dict(zip((k for k, _ in layout), packed.split([w for _, w in layout], 2)))
            cls, box = net(images.float() / 255)
            loss = loss_fn(cls, box, targets)
            opt.zero_grad()
            loss.backward()
            opt.step()
            tot += loss.detach()
            n += 1
            if n == 5:
                t0 = time.perf_counter()
        print(f"epoch {epoch} loss {tot / len(loader):.4f}")
    dt = (time.perf_counter() - t0) / (n - 5)
    print(f"{1 / dt:.1f} steps/s, {dt * 1e3:.1f} ms/step")


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=20)
    ap.add_argument("--batch-size", type=int, default=40)
    main(ap.parse_args())
