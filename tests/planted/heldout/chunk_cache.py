"""Rows in zlib-packed chunks of 512; the reader keeps the last chunk it unpacked. Shuffled."""

import pathlib
import tempfile
import zlib

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

CHUNK, ROWS, WIDTH = 512, 512 * 120, 256


class Chunked(Dataset):
    def __init__(self, root):
        self.root = pathlib.Path(root)
        self.last = (None, None)

    def __len__(self):
        return ROWS

    def __getitem__(self, i):
        chunk, row = divmod(i, CHUNK)
        if self.last[0] != chunk:
            raw = zlib.decompress((self.root / f"c{chunk:04d}.z").read_bytes())
            self.last = (chunk, np.frombuffer(raw, np.float32).reshape(CHUNK, WIDTH))
        x = self.last[1][row]
        return torch.from_numpy(x.copy()), int(i % 10)


def build(root):
    rng = np.random.default_rng(0)
    for c in range(ROWS // CHUNK):
        data = rng.integers(0, 50, (CHUNK, WIDTH)).astype(np.float32)
        (root / f"c{c:04d}.z").write_bytes(zlib.compress(data.tobytes(), 1))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as t:
        root = pathlib.Path(t)
        build(root)
        loader = DataLoader(Chunked(root), batch_size=64, shuffle=True, num_workers=2)
        net = nn.Sequential(nn.Linear(WIDTH, 512), nn.ReLU(), nn.Linear(512, 10))
        opt = torch.optim.Adam(net.parameters())
        for epoch in range(20):
            for x, y in loader:
                opt.zero_grad()
                loss = nn.functional.cross_entropy(net(x), y)
                loss.backward()
                opt.step()
            print(epoch, float(loss))
