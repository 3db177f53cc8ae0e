"""Precipitation nowcasting from radar composites stored in hourly archives."""

import glob
import os
import time
from collections import OrderedDict

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset, Sampler

ROOT = "data_radar"
PER_FILE, FRAMES, SIDE = 128, 5, 64
N_FILES = 12


def simulate():
    os.makedirs(ROOT, exist_ok=True)
    if len(glob.glob(f"{ROOT}/*.npz")) == N_FILES:
        return
    rng = np.random.default_rng(2)
    for k in range(N_FILES):
        base = rng.random((PER_FILE, 1, 10, 10), dtype=np.float32).repeat(8, 2).repeat(8, 3)
        seq = [np.roll(base, (f, 2 * f), (2, 3))[:, 0, :SIDE, :SIDE] for f in range(FRAMES)]
        x = np.stack(seq, 1) * 200 + rng.random((PER_FILE, FRAMES, SIDE, SIDE), dtype=np.float32) * 20
        np.savez_compressed(f"{ROOT}/hour_{k:03d}.tmp.npz", dbz=x.astype(np.uint8))
        os.rename(f"{ROOT}/hour_{k:03d}.tmp.npz", f"{ROOT}/hour_{k:03d}.npz")


class Composites(Dataset):
    def __init__(self, files, keep):
        self.files, self.keep = files, keep
        self.open = OrderedDict()

    def __len__(self):
        return len(self.files) * PER_FILE

    def _hour(self, f):
        if f in self.open:
            self.open.move_to_end(f)
        else:
            with np.load(self.files[f]) as z:
                self.open[f] = z["dbz"]
            if len(self.open) > self.keep:
                self.open.popitem(last=False)
        return self.open[f]

    def __getitem__(self, i):
        f, r = divmod(int(i), PER_FILE)
        return torch.from_numpy(self._hour(f)[r])


class Nowcaster(nn.Module):
    def __init__(self, w=14):
        super().__init__()
        self.enc1 = nn.Sequential(nn.Conv2d(4, w, 3, padding=1), nn.ReLU(), nn.Conv2d(w, w, 3, padding=1), nn.ReLU())
        self.enc2 = nn.Sequential(
            nn.Conv2d(w, 2 * w, 3, 2, 1), nn.ReLU(), nn.Conv2d(2 * w, 2 * w, 3, padding=1), nn.ReLU()
        )
        self.up = nn.ConvTranspose2d(2 * w, w, 2, 2)
        self.dec = nn.Sequential(nn.Conv2d(2 * w, w, 3, padding=1), nn.ReLU(), nn.Conv2d(w, 1, 1))

    def forward(self, x):
        a = self.enc1(x)
        return self.dec(torch.cat([a, self.up(self.enc2(a))], 1))


def main():
    simulate()
    torch.manual_seed(0)
    files = sorted(glob.glob(f"{ROOT}/hour_???.npz"))
    ds = Composites(files, keep=2)
    loader = DataLoader(ds, batch_size=16, shuffle=True, num_workers=2, persistent_workers=True)
    net = Nowcaster()
    opt = torch.optim.AdamW(net.parameters(), 1e-3)
    accumulate = 2
    for epoch in range(14):
        t0 = time.time()
        for k, seq in enumerate(loader, 1):
            seq = seq.float() / 255
            pred = net(seq[:, :4])
            target = seq[:, 4:]
            loss = ((pred - target).square() * (1 + 4 * target)).mean() + 0.2 * (pred - target).abs().mean()
            (loss / accumulate).backward()
            if k % accumulate == 0:
                opt.step()
                opt.zero_grad()
            if k % 18 == 0:
                print(
                    f"epoch {epoch} batch {k} loss {loss.item():.4f} {16 * k / (time.time() - t0):.1f} seq/s",
                    flush=True,
                )
        print(f"epoch {epoch} {time.time() - t0:.1f}s", flush=True)


if __name__ == "__main__":
    main()
