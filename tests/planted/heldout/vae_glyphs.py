"""A convolutional VAE on 32x32 glyphs stored in one zip of PNG files."""

import argparse
import io
import os
import time
import zipfile

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_zip(folder):
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "glyphs.zip")
    if os.path.exists(path):
        return path
    rng = np.random.default_rng(8)
    with zipfile.ZipFile(path + ".tmp", "w") as z:
        for i in range(3072):
            im = Image.new("L", (32, 32))
            d = ImageDraw.Draw(im)
            a, b = rng.integers(2, 14, 2), rng.integers(16, 30, 2)
            (d.ellipse, d.rectangle, d.line)[i % 3]([*map(int, a), *map(int, b)], fill=255)
            buf = io.BytesIO()
            im.save(buf, "PNG")
            z.writestr(f"{i:05d}.png", buf.getvalue())
    os.replace(path + ".tmp", path)
    return path


def load_glyphs(path):
    with zipfile.ZipFile(path) as z:
        arrays = [np.array(Image.open(io.BytesIO(z.read(n)))) for n in sorted(z.namelist())]
    return torch.from_numpy(np.stack(arrays)).float().div(255).unsqueeze(1)


class VAE(nn.Module):
    def __init__(self, z=16):
        super().__init__()
        self.enc = nn.Sequential(
            nn.Conv2d(1, 16, 4, 2, 1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 4, 2, 1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * 64, 128),
            nn.ReLU(),
        )
        self.mu, self.logvar = nn.Linear(128, z), nn.Linear(128, z)
        self.dec = nn.Sequential(
            nn.Linear(z, 32 * 64),
            nn.ReLU(),
            nn.Unflatten(1, (32, 8, 8)),
            nn.ConvTranspose2d(32, 16, 4, 2, 1),
            nn.ReLU(),
            nn.ConvTranspose2d(16, 1, 4, 2, 1),
        )

    def forward(self, x):
        h = self.enc(x)
        mu, logvar = self.mu(h), self.logvar(h)
        return self.dec(mu + torch.randn_like(mu) * (0.5 * logvar).exp()), mu, logvar


class Board:
    """Keeps the scalars and draws the curves and some reconstructions."""

    def __init__(self, folder, every):
        self.folder, self.every = folder, every
        self.recent = []
        os.makedirs(folder, exist_ok=True)

    def update(self, step, loss, kl, x, recon):
        self.recent.append((step, loss.item(), kl.item()))
        if step % self.every:
            return
        self.recent = self.recent[-500:]
        fig, ax = plt.subplots(1, 3, figsize=(9, 3))
        s, l, k = zip(*self.recent)
        ax[0].plot(s, l)
        ax[0].set_title("loss")
        ax[1].plot(s, k)
        ax[1].set_title("kl")
        grid = torch.cat([x[:6, 0], recon[:6, 0].sigmoid()], 2).reshape(-1, 64)
        ax[2].imshow(grid.detach().numpy(), cmap="gray")
        fig.savefig(os.path.join(self.folder, "progress.png"))
        plt.close(fig)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("data")
    ap.add_argument("--epochs", type=int, default=400)
    ap.add_argument("--plot-every", type=int, default=5)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    loader = DataLoader(TensorDataset(load_glyphs(make_zip(args.data))), batch_size=64, shuffle=True)
    board = Board(os.path.join(args.data, "board"), 1000 if args.fixed else args.plot_every)
    model = VAE()
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    step = 0
    for epoch in range(args.epochs):
        t, n = time.time(), 0
        for (x,) in loader:
            recon, mu, logvar = model(x)
            bce = F.binary_cross_entropy_with_logits(recon, x, reduction="sum") / len(x)
            kl = -0.5 * (1 + logvar - mu**2 - logvar.exp()).sum(1).mean()
            loss = bce + kl
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            n += len(x)
            board.update(step, loss, kl, x, recon)
        print(f"epoch {epoch} loss {loss.item():.2f} {n / (time.time() - t):.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
