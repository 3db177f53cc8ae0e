"""Denoising U-Net on patches streamed from .npy shards, noise level raised epoch by epoch."""

import argparse
import os
import tempfile
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

CFG = {
    "shards": 8,
    "per_shard": 144,
    "image": 80,
    "crop": 64,
    "base": 16,
    "batch_size": 16,
    "epochs": 5,
    "noise": [0.05, 0.1, 0.15, 0.2, 0.25],
    "workers": 2,
    "lr": 1e-3,
    "seed": 9,
}


def write_shards(root, cfg):
    rng = np.random.default_rng(cfg["seed"])
    yy, xx = np.mgrid[0 : cfg["image"], 0 : cfg["image"]] / cfg["image"]
    paths = []
    for s in range(cfg["shards"]):
        f = rng.uniform(2, 12, (cfg["per_shard"], 2, 1, 1))
        ph = rng.uniform(0, 6, (cfg["per_shard"], 1, 1))
        img = 0.5 + 0.5 * np.sin(f[:, 0] * xx + f[:, 1] * yy + ph)
        path = os.path.join(root, f"shard_{s:03d}.npy")
        np.save(path, (255 * img).astype(np.uint8))
        paths.append(path)
    return paths


class ShardStream(IterableDataset):
    def __init__(self, paths, crop, seed):
        self.paths, self.crop, self.seed = paths, crop, seed
        self.round = 0

    def __iter__(self):
        info = get_worker_info()
        wid, num = (0, 1) if info is None else (info.id, info.num_workers)
        rng = np.random.default_rng((self.seed, wid, self.round))
        self.round += 1
        mine = self.paths[wid::num]
        for k in rng.permutation(len(mine)):
            shard = np.load(mine[k])
            for i in rng.permutation(len(shard)):
                top, left = rng.integers(0, shard.shape[1] - self.crop + 1, 2)
                patch = shard[i, top : top + self.crop, left : left + self.crop]
                if rng.random() < 0.5:
                    patch = patch[:, ::-1]
                yield torch.from_numpy(patch.astype(np.float32) / 255.0).unsqueeze(0)


def double_conv(cin, cout):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(cout, cout, 3, padding=1),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.enc1 = double_conv(1, base)
        self.enc2 = double_conv(base, 2 * base)
        self.mid = double_conv(2 * base, 4 * base)
        self.dec2 = double_conv(6 * base, 2 * base)
        self.dec1 = double_conv(3 * base, base)
        self.out = nn.Conv2d(base, 1, 1)

    def forward(self, x):
        e1 = self.enc1(x)
        e2 = self.enc2(F.max_pool2d(e1, 2))
        m = self.mid(F.max_pool2d(e2, 2))
        d2 = self.dec2(torch.cat([F.interpolate(m, scale_factor=2), e2], 1))
        d1 = self.dec1(torch.cat([F.interpolate(d2, scale_factor=2), e1], 1))
        return x - self.out(d1)


def psnr(a, b):
    return -10 * torch.log10(F.mse_loss(a, b)).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fixed", action="store_true")
    parser.parse_args()
    cfg = CFG
    torch.manual_seed(cfg["seed"])
    with tempfile.TemporaryDirectory() as root:
        paths = write_shards(root, cfg)
        stream = ShardStream(paths, cfg["crop"], cfg["seed"])
        loader = DataLoader(
            stream, batch_size=cfg["batch_size"], num_workers=cfg["workers"], persistent_workers=True, drop_last=True
        )
        model = UNet(cfg["base"])
        optimizer = torch.optim.Adam(model.parameters(), lr=cfg["lr"])
        scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[3, 4], gamma=0.5)

        steps, start = 0, time.time()
        for epoch in range(cfg["epochs"]):
            sigma = cfg["noise"][epoch]
            total, count = 0.0, 0
            for clean in loader:
                noisy = clean + sigma * torch.randn_like(clean)
                restored = model(noisy)
                loss = F.mse_loss(restored, clean)
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                total += loss.item()
                count += 1
                steps += 1
                if count % 20 == 0:
                    print(
                        f"epoch {epoch} step {count} sigma {sigma} psnr {psnr(restored.detach(), clean):.2f} dB",
                        flush=True,
                    )
            scheduler.step()
            torch.save({"model": model.state_dict(), "epoch": epoch}, os.path.join(root, "last.pt"))
            print(f"epoch {epoch}: loss {total / count:.5f}", flush=True)
        print(f"{steps} steps in {time.time() - start:.1f} s")


if __name__ == "__main__":
    main()
