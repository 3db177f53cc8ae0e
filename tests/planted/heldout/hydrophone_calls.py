import argparse
import bz2
import json
import shutil
import tempfile
import time
import zlib
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

BLOCK = 8192  # int16 values in one stored block
RUN = 5  # consecutive blocks that cover one clip
CLIP = 32768


def record(root: Path, n: int, blocks: int, codec: str):
    """Recordings are stored as blocks so that a clip can be cut out without reading the rest."""
    rng = np.random.default_rng(11)
    pack = (lambda b: bz2.compress(b, 9)) if codec == "bz2" else (lambda b: zlib.compress(b, 1))
    index = []
    for r in range(n):
        kind = r % 4
        t = np.arange(blocks * BLOCK)
        sig = rng.normal(0, 12, t.size) + 60 * np.sin(t * (0.01 + 0.02 * kind)) * (np.sin(t * 0.0004 * (kind + 1)) > 0)
        raw = sig.astype("<i2")
        offsets = [0]
        with open(root / f"{r:03d}.rec", "wb") as f:
            for k in range(blocks):
                offsets.append(offsets[-1] + f.write(pack(raw[k * BLOCK : (k + 1) * BLOCK].tobytes())))
        index.append({"file": f"{r:03d}.rec", "label": kind, "offsets": offsets})
    (root / "index.json").write_text(json.dumps({"codec": codec, "recordings": index}))


class Clips(Dataset):
    def __init__(self, root: Path, clips_per_epoch: int):
        meta = json.loads((root / "index.json").read_text())
        self.root, self.n = root, clips_per_epoch
        self.recs = meta["recordings"]
        self.unpack = {"bz2": bz2.decompress, "zlib": zlib.decompress}[meta["codec"]]

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        rec = self.recs[i % len(self.recs)]
        off = rec["offsets"]
        first = int(torch.randint(0, len(off) - RUN, ()))
        with open(self.root / rec["file"], "rb") as f:
            f.seek(off[first])
            buf = f.read(off[first + RUN] - off[first])
        parts = [self.unpack(buf[off[k] - off[first] : off[k + 1] - off[first]]) for k in range(first, first + RUN)]
        wave = np.frombuffer(b"".join(parts), "<i2")
        shift = int(torch.randint(0, wave.size - CLIP, ()))
        wave = torch.from_numpy(wave[shift : shift + CLIP].astype(np.float32))
        wave = wave / 64 * (0.7 + 0.6 * torch.rand(()))
        return wave[None], rec["label"]


class CallNet(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.stem = nn.Conv1d(1, width, 64, stride=64)
        self.body = nn.Sequential(
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Conv1d(width, width * 2, 9, stride=4),
            nn.BatchNorm1d(width * 2),
            nn.ReLU(),
            nn.Conv1d(width * 2, width * 2, 9, stride=2),
            nn.ReLU(),
        )
        self.head = nn.Linear(width * 2, 4)

    def forward(self, x):
        return self.head(self.body(self.stem(x)).mean(-1))


class Trainer:
    def __init__(self, model, loader, out: Path, lr):
        self.model, self.loader, self.out = model, loader, out
        self.opt = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, nesterov=True)
        self.steps = 0

    def one_epoch(self, limit):
        seen = right = 0
        for x, y in self.loader:
            logits = self.model(x)
            loss = F.cross_entropy(logits, y, label_smoothing=0.05)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            self.steps += 1
            right += (logits.argmax(1) == y).sum().item()
            seen += len(y)
            if self.steps % 100 == 0:
                print(f"  step {self.steps} loss {loss.item():.3f}", flush=True)
            if limit and self.steps >= limit:
                break
        return right / seen

    def fit(self, epochs, limit):
        for e in range(epochs):
            acc = self.one_epoch(limit)
            torch.save(self.model.state_dict(), self.out / "last.pt")
            print(f"epoch {e} train accuracy {acc:.3f}")
            if limit and self.steps >= limit:
                return


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--clips", type=int, default=10400)
    p.add_argument("--batch-size", type=int, default=16)
    p.add_argument("--workers", type=int, default=2)
    p.add_argument("--limit", type=int, default=0)
    p.add_argument("--fixed", action="store_true")
    a = p.parse_args()
    torch.manual_seed(0)
    root = Path(tempfile.mkdtemp(prefix="hydro"))
    try:
        record(root, 24, 24, "zlib" if a.fixed else "bz2")
        dl = DataLoader(
            Clips(root, a.clips),
            a.batch_size,
            shuffle=True,
            num_workers=a.workers,
            persistent_workers=True,
            drop_last=True,
        )
        tr = Trainer(CallNet(), dl, root, 0.02)
        t0 = time.time()
        tr.fit(a.epochs, a.limit)
        print(f"{tr.steps} steps in {time.time() - t0:.1f} s")
    finally:
        shutil.rmtree(root, ignore_errors=True)
