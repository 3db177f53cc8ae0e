"""CT patches for a small 3-D net. Six scans on disk, one random 16-cube per access."""

import os, pathlib, tempfile, time
import numpy as np, torch
import torch.nn as nn


class Scans(torch.utils.data.Dataset):
    def __init__(self, root, per_epoch=240, size=16):
        self.paths = sorted(map(str, pathlib.Path(root).glob("*.npy")))
        self.per_epoch, self.size = per_epoch, size

    def __len__(self):
        return self.per_epoch

    def __getitem__(self, i):
        path = self.paths[i % len(self.paths)]
        vol = np.load(path)
        rng = np.random.default_rng(np.random.randint(2**31))
        z, y, x = (int(rng.integers(0, s - self.size)) for s in vol.shape)
        cube = np.array(vol[z : z + self.size, y : y + self.size, x : x + self.size], dtype=np.float32)
        return {"image": torch.from_numpy(cube)[None] / 2048, "mask": torch.from_numpy((cube > 900).astype(np.int64))}


def make(root):
    root = pathlib.Path(root)
    root.mkdir(parents=True, exist_ok=True)
    for k in range(6):
        p = root / f"scan{k}.npy"
        if not p.exists():
            r = np.random.default_rng(k)
            np.save(p, r.integers(0, 2000, (176, 192, 192), dtype=np.int16))
    return root


class UNetish(nn.Module):
    def __init__(self, c=8):
        super().__init__()
        self.a = nn.Conv3d(1, c, 3, padding=1)
        self.b = nn.Conv3d(c, 2 * c, 3, stride=2, padding=1)
        self.c = nn.ConvTranspose3d(2 * c, c, 2, stride=2)
        self.o = nn.Conv3d(2 * c, 2, 1)

    def forward(self, x):
        a = torch.relu(self.a(x))
        return self.o(torch.cat([a, torch.relu(self.c(torch.relu(self.b(a))))], 1))


def train(cfg):
    torch.manual_seed(cfg["seed"])
    dl = torch.utils.data.DataLoader(Scans(cfg["root"]), batch_size=cfg["bs"], num_workers=cfg["workers"])
    net = UNetish()
    opt = torch.optim.Adam(net.parameters(), cfg["lr"])
    for ep in range(cfg["epochs"]):
        t0 = time.monotonic()
        for n, b in enumerate(dl, 1):
            opt.zero_grad()
            loss = nn.functional.cross_entropy(net(b["image"]), b["mask"])
            loss.backward()
            opt.step()
        print(f"epoch {ep}: {loss.item():.3f}, {n / (time.monotonic() - t0):.2f} it/s", flush=True)


if __name__ == "__main__":
    root = os.environ.get("CT_DATA", os.path.join(tempfile.gettempdir(), "ct_scans_small"))
    train(dict(root=make(root), bs=8, workers=0, lr=1e-3, epochs=24, seed=0))
