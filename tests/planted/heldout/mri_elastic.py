"""Brain-lesion segmentation on 2D MRI slices with elastic deformation (Simard et al.) drawn anew for every sample."""

import argparse
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


def phantom(n, side, seed=0):
    rng = np.random.default_rng(seed)
    yy, xx = np.mgrid[-1 : 1 : side * 1j, -1 : 1 : side * 1j].astype(np.float32)
    imgs, masks = np.empty((n, side, side), np.float32), np.empty((n, side, side), np.float32)
    for i in range(n):
        cx, cy, r = rng.uniform(-0.4, 0.4, 3)
        lesion = ((xx - cx) ** 2 + (yy - cy) ** 2) < (0.1 + abs(r) * 0.3) ** 2
        imgs[i] = (xx**2 + yy**2 < 0.8) * 0.5 + lesion * 0.4 + rng.normal(0, 0.05, (side, side))
        masks[i] = lesion
    return imgs, masks


def smooth(field, sigma):
    k = np.exp(-0.5 * (np.arange(-3 * sigma, 3 * sigma + 1) / sigma) ** 2)
    k /= k.sum()
    field = np.apply_along_axis(np.convolve, 0, field, k, mode="same")
    return np.apply_along_axis(np.convolve, 1, field, k, mode="same")


def elastic(img, mask, rng, alpha=30, sigma=6):
    h, w = img.shape
    dy, dx = (smooth(rng.uniform(-1, 1, (h, w)), sigma) * alpha for _ in range(2))
    y = np.clip(np.arange(h)[:, None] + dy, 0, h - 1.001)
    x = np.clip(np.arange(w)[None] + dx, 0, w - 1.001)
    y0, x0 = y.astype(int), x.astype(int)
    fy, fx = y - y0, x - x0

    def sample(a):
        return (
            a[y0, x0] * (1 - fy) * (1 - fx)
            + a[y0, x0 + 1] * (1 - fy) * fx
            + a[y0 + 1, x0] * fy * (1 - fx)
            + a[y0 + 1, x0 + 1] * fy * fx
        ).astype(np.float32)

    return sample(img), (sample(mask) > 0.5).astype(np.float32)


class Slices(Dataset):
    def __init__(self, n=800, side=128):
        self.imgs, self.masks = phantom(n, side)

    def __len__(self):
        return len(self.imgs)

    def __getitem__(self, i):
        rng = np.random.default_rng(torch.randint(2**31, ()).item())
        img, mask = elastic(self.imgs[i], self.masks[i], rng)
        return {"image": img[None], "mask": mask[None]}


class PatchNet(nn.Module):
    """Lesion or not, per 8 x 8 patch."""

    def __init__(self, c=12):
        super().__init__()
        self.a, self.b, self.o = nn.Conv2d(1, c, 8, stride=8), nn.Conv2d(c, c, 3, padding=1), nn.Conv2d(c, 1, 1)

    def forward(self, x):
        return self.o(F.relu(self.b(F.relu(self.a(x)))))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=18)
    ap.add_argument("--workers", type=int, default=1)
    ap.add_argument("--fixed", action="store_true", help="a second worker")
    args = ap.parse_args()
    torch.set_num_threads(1)
    loader = DataLoader(
        Slices(), batch_size=16, shuffle=True, num_workers=2 if args.fixed else args.workers, persistent_workers=True
    )
    net = PatchNet()
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    for epoch in range(args.epochs):
        t0 = time.time()
        for batch in loader:
            loss = F.binary_cross_entropy_with_logits(net(batch["image"]), F.max_pool2d(batch["mask"], 8))
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(f"epoch {epoch} loss {loss.item():.4f} {(time.time() - t0) / len(loader) * 1e3:.1f} ms/step", flush=True)


if __name__ == "__main__":
    main()
