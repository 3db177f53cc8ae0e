"""Autoencoder on a folder of small JPEGs, with a validation pass and a checkpoint of the best model."""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset


def write_images(root, n=520):
    root = Path(root) / "img"
    root.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(21)
    for i in range(n):
        f = root / f"{i:04d}.jpg"
        if not f.exists():
            Image.fromarray(rng.integers(0, 255, (6, 6, 3), dtype=np.uint8)).resize((64, 64), Image.BICUBIC).save(
                f, quality=85
            )
    return root


class Folder(Dataset):
    def __init__(self, root):
        self.files = sorted(root.glob("*.jpg"))

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        with Image.open(self.files[i]) as im:
            return torch.from_numpy(np.array(im)).permute(2, 0, 1).float() / 255


class AE(nn.Module):
    def __init__(self, c=48):
        super().__init__()
        self.down = nn.Sequential(
            nn.Conv2d(3, c, 3, 1, 1),
            nn.GELU(),
            nn.Conv2d(c, c, 3, 2, 1),
            nn.GELU(),
            nn.Conv2d(c, 2 * c, 3, 2, 1),
            nn.GELU(),
            nn.Conv2d(2 * c, 16, 3, 2, 1),
        )
        self.up = nn.Sequential(
            nn.Conv2d(16, 2 * c, 3, 1, 1),
            nn.GELU(),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(2 * c, c, 3, 1, 1),
            nn.GELU(),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(c, c, 3, 1, 1),
            nn.GELU(),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(c, 3, 3, 1, 1),
        )

    def forward(self, x):
        return self.up(self.down(x))


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    errors = [nn.functional.mse_loss(model(x), x).item() for x in loader]
    model.train()
    return sum(errors) / len(errors)


def main(args):
    data = Folder(write_images(args.data))
    idx = torch.randperm(len(data), generator=torch.Generator().manual_seed(0)).tolist()
    train = DataLoader(
        Subset(data, idx[32:]), batch_size=16, shuffle=True, num_workers=1, persistent_workers=True, drop_last=True
    )
    val = DataLoader(Subset(data, idx[:32]), batch_size=32)
    model = AE()
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    best = 1e9
    for epoch in range(args.epochs):
        t, n = time.time(), 0
        for x in train:
            loss = nn.functional.mse_loss(model(x), x)
            opt.zero_grad()
            loss.backward()
            opt.step()
            n += len(x)
        rate = n / (time.time() - t)
        score = evaluate(model, val)
        if score < best:
            best = score
            torch.save({"model": model.state_dict(), "epoch": epoch}, Path(args.data) / "best.pt")
        print(f"epoch {epoch} train {loss.item():.4f} val {score:.4f} {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("data")
    p.add_argument("--epochs", type=int, default=300)
    p.add_argument("--fixed", action="store_true")
    main(p.parse_args())
