"""Road segmentation with a small U-Net; tiles are kept in memory, one background worker crops and flips them."""

import argparse
import pathlib
import shutil
import tempfile
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Tiles(Dataset):
    def __init__(self, n, crop, augment, seed):
        rng = np.random.default_rng(seed)
        self.img = rng.integers(60, 140, (n, 3, 128, 128), dtype=np.uint8)
        self.lab = np.zeros((n, 128, 128), np.uint8)
        for k in range(n):
            r, c = rng.integers(8, 120, 2)
            self.lab[k, r - 3 : r + 3] = 1
            self.lab[k, :, c - 2 : c + 2] = 1
        self.img += (self.lab * 70)[:, None].astype(np.uint8)
        self.crop, self.augment = crop, augment

    def __len__(self):
        return len(self.img)

    def __getitem__(self, k):
        if self.augment:
            top, left = torch.randint(0, 128 - self.crop + 1, (2,)).tolist()
        else:
            top = left = (128 - self.crop) // 2
        img = self.img[k, :, top : top + self.crop, left : left + self.crop]
        lab = self.lab[k, top : top + self.crop, left : left + self.crop]
        if self.augment and torch.rand(()) < 0.5:
            img, lab = img[..., ::-1], lab[..., ::-1]
        return torch.from_numpy(img.astype(np.float32) / 128 - 1), torch.from_numpy(lab.astype(np.float32))


def pair(i, o):
    return nn.Sequential(
        nn.Conv2d(i, o, 3, padding=1),
        nn.GroupNorm(4, o),
        nn.ReLU(),
        nn.Conv2d(o, o, 3, padding=1),
        nn.GroupNorm(4, o),
        nn.ReLU(),
    )


class UNet(nn.Module):
    def __init__(self, w=24):
        super().__init__()
        self.d1, self.d2, self.mid = pair(3, w), pair(w, 2 * w), pair(2 * w, 4 * w)
        self.u2, self.u1 = pair(6 * w, 2 * w), pair(3 * w, w)
        self.out = nn.Conv2d(w, 1, 1)

    def forward(self, x):
        a = self.d1(x)
        b = self.d2(F.max_pool2d(a, 2))
        c = self.mid(F.max_pool2d(b, 2))
        b = self.u2(torch.cat([F.interpolate(c, scale_factor=2.0), b], 1))
        a = self.u1(torch.cat([F.interpolate(b, scale_factor=2.0), a], 1))
        return self.out(a)[:, 0]


def dice(logits, y):
    p = logits.sigmoid()
    return 1 - (2 * (p * y).sum() + 1) / (p.sum() + y.sum() + 1)


class Trainer:
    def __init__(self, args, folder):
        self.args, self.folder = args, folder
        self.train_dl = DataLoader(
            Tiles(600, 96, True, 0), args.bs, shuffle=True, num_workers=1, persistent_workers=True
        )
        self.val_dl = DataLoader(Tiles(16, 96, False, 1), args.bs)
        self.net = UNet()
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=1e-3)
        self.step = 0

    def losses(self, x, y):
        z = self.net(x)
        return {"bce": F.binary_cross_entropy_with_logits(z, y), "dice": dice(z, y)}

    def fit(self):
        t0 = time.time()
        for epoch in range(self.args.epochs):
            for x, y in self.train_dl:
                terms = self.losses(x, y)
                self.opt.zero_grad()
                sum(terms.values()).backward()
                self.opt.step()
                self.step += 1
                if self.step % 10 == 0:
                    print(self.step, " ".join(f"{k}={v.item():.3f}" for k, v in terms.items()), flush=True)
                if self.step % 100 == 0:
                    torch.save(self.net.state_dict(), self.folder / f"{self.step}.pt")
                if self.step == self.args.stop:
                    break
            with torch.no_grad():
                val = [self.losses(x, y)["dice"].item() for x, y in self.val_dl]
            print(f"epoch {epoch} val dice {1 - np.mean(val):.3f}")
            if self.step == self.args.stop:
                break
        print(f"{self.step} steps in {time.time() - t0:.1f} s")


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--bs", type=int, default=6)
    ap.add_argument("--stop", type=int, default=0)
    ap.add_argument("--fixed", action="store_true")
    folder = pathlib.Path(tempfile.mkdtemp())
    try:
        Trainer(ap.parse_args(), folder).fit()
    finally:
        shutil.rmtree(folder)
