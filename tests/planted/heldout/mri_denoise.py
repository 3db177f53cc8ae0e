"""Self-supervised denoising of brain MRI on 32^3 bricks; scans were cut into bricks at export, a brick is contiguous."""

import time
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

STORE = Path("data_mri_denoise/bricks.npy")
BRICKS, EDGE = 384, 32


def cut():
    if STORE.exists():
        return
    STORE.parent.mkdir(exist_ok=True)
    out = np.lib.format.open_memmap(STORE, "w+", np.int16, (BRICKS, EDGE, EDGE, EDGE))
    rng = np.random.default_rng(3)
    for i in range(0, BRICKS, 64):
        out[i : i + 64] = rng.integers(0, 2000, (64, EDGE, EDGE, EDGE), dtype=np.int16)
    out.flush()


class Bricks(Dataset):
    def __init__(self, ids):
        self.ids, self.array = ids, np.load(STORE, mmap_mode="r")

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return torch.from_numpy(np.array(self.array[self.ids[i]]))


class Denoiser(nn.Module):
    def __init__(self, c=8):
        super().__init__()
        self.a = nn.Conv3d(1, c, 3, padding=1)
        self.b = nn.Conv3d(c, c, 3, padding=1)
        self.c = nn.Conv3d(c, 1, 3, padding=1)

    def forward(self, x):
        h = torch.relu(self.a(x))
        h = torch.relu(self.b(h)) + h
        return x - self.c(h)


def prepare(batch):
    clean = batch.unsqueeze(1).float().mul_(1 / 2000)
    return clean + 0.1 * torch.randn_like(clean), clean


def validate(model, loader):
    model.eval()
    with torch.no_grad():
        total = sum(nn.functional.mse_loss(model(noisy), clean) for noisy, clean in map(prepare, loader))
    model.train()
    return (total / len(loader)).item()


def main():
    torch.manual_seed(0)
    cut()
    split = BRICKS - 16
    train = DataLoader(Bricks(np.arange(split)), batch_size=4, shuffle=True)
    val = DataLoader(Bricks(np.arange(split, split + 16)), batch_size=4)
    model = Denoiser()
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    for epoch in range(3):
        t = time.perf_counter()
        for noisy, clean in map(prepare, train):
            loss = nn.functional.mse_loss(model(noisy), clean)
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(f"epoch {epoch}: val mse {validate(model, val):.5f}")
        print(f"epoch_seconds {time.perf_counter() - t:.3f}", flush=True)


if __name__ == "__main__":
    main()
