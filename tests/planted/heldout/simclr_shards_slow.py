"""SimCLR pre-training on a packed photo shard."""

import argparse
import io
import random
import struct
import time
from pathlib import Path

import numpy as np
import simplejpeg
import torch
import torch.nn as nn
import torch.nn.functional as F
from PIL import Image
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

HERE = Path("data") / "simclr_shards"
SIDE = 1024
SHARD = HERE / f"photos_{SIDE}.bin"
N_RECORDS = 4200


def build_shard():
    if SHARD.exists():
        return
    HERE.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(7)
    payloads = []
    for _ in range(120):
        low = rng.integers(0, 255, (12, 16, 3), dtype=np.uint8)
        img = np.asarray(Image.fromarray(low).resize((SIDE, SIDE * 3 // 4), Image.BICUBIC)).astype(np.int16)
        img += rng.integers(-3, 3, (SIDE * 3 // 4, SIDE, 1), dtype=np.int16)
        payloads.append(simplejpeg.encode_jpeg(np.clip(img, 0, 255).astype(np.uint8), quality=55))
    tmp = SHARD.with_suffix(".part")
    with open(tmp, "wb") as f:
        for i in range(N_RECORDS):
            p = payloads[int(rng.integers(len(payloads)))]
            # every record carries its id in a JPEG comment, right after SOI
            com = struct.pack(">HHI", 0xFFFE, 6, i)
            p = p[:2] + com + p[2:]
            f.write(struct.pack("<I", len(p)))
            f.write(p)
    tmp.rename(SHARD)


class PhotoShard(IterableDataset):
    def __init__(self, path, crop=48):
        self.path, self.crop = path, crop

    def records(self):
        info = get_worker_info()
        wid, n = (info.id, info.num_workers) if info else (0, 1)
        with open(self.path, "rb", buffering=1 << 20) as f:
            k = 0
            while head := f.read(4):
                (size,) = struct.unpack("<I", head)
                if k % n == wid:
                    yield f.read(size)
                else:
                    f.seek(size, 1)
                k += 1

    def view(self, img):
        w, h = img.size
        s = int(min(w, h) * random.uniform(0.4, 0.9))
        x, y = random.randint(0, w - s), random.randint(0, h - s)
        v = img.resize((self.crop, self.crop), Image.BILINEAR, box=(x, y, x + s, y + s), reducing_gap=1.0)
        a = np.array(v)
        if random.random() < 0.5:
            a = a[:, ::-1].copy()
        return torch.from_numpy(a).permute(2, 0, 1)

    def __iter__(self):
        for blob in self.records():
            img = Image.open(io.BytesIO(blob)).convert("RGB")
            yield self.view(img), self.view(img)


def block(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, 2, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(block(3, 20), block(20, 40), block(40, 80), block(80, 160))
        self.head = nn.Sequential(nn.Linear(160, 128), nn.ReLU(), nn.Linear(128, 64))

    def forward(self, x):
        return F.normalize(self.head(self.body(x).mean((2, 3))), dim=1)


def nt_xent(a, b, t=0.2):
    z = torch.cat([a, b])
    sim = z @ z.T / t
    sim.fill_diagonal_(-1e9)
    n = len(a)
    tgt = torch.cat([torch.arange(n, 2 * n), torch.arange(n)])
    return F.cross_entropy(sim, tgt)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=174)
    ap.add_argument("--batch-size", type=int, default=24)
    ap.add_argument("--workers", type=int, default=2)
    ap.add_argument("--lr", type=float, default=3e-4)
    args = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    build_shard()

    loader = DataLoader(PhotoShard(SHARD), batch_size=args.batch_size, num_workers=args.workers, drop_last=True)
    net = Encoder()
    opt = torch.optim.AdamW(net.parameters(), lr=args.lr)
    t0 = None
    for step, (a, b) in enumerate(loader):
        if step == args.steps:
            break
        if step == 5:
            t0 = time.perf_counter()
        x = torch.cat([a, b]).float().div_(127.5).sub_(1)
        z = net(x)
        loss = nt_xent(*z.chunk(2))
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        if step % 50 == 0:
            print(f"step {step:4d}  loss {loss.item():.3f}")
    dt = time.perf_counter() - t0
    done = min(step, args.steps) - 5
    print(f"{done / dt:.2f} steps/s ({1e3 * dt / done:.1f} ms)")


if __name__ == "__main__":
    main()
