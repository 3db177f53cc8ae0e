"""Mineral identification from Raman spectra.

The archive came as compressed blocks of 256 spectra each (`block_XX.z`); a handful of opened blocks is kept.
"""

import argparse
import itertools
import zlib
from collections import OrderedDict
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

POINTS = 1024
PER_BLOCK = 256
MINERALS = 20


def write_archive(root: Path, blocks: int) -> None:
    paths = [root / f"block_{b:02d}.z" for b in range(blocks)]
    if all(path.exists() for path in paths):
        return
    root.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(40)
    shift = np.arange(POINTS)
    centres = rng.uniform(40, POINTS - 40, (MINERALS, 6))
    heights = rng.uniform(300, 2500, (MINERALS, 6))
    for path in paths:
        labels = rng.integers(0, MINERALS, PER_BLOCK)
        spectra = rng.normal(200, 60, (PER_BLOCK, POINTS))
        for k in range(6):
            where = centres[labels, k] + rng.normal(0, 3, PER_BLOCK)
            spectra += heights[labels, k][:, None] * np.exp(-(((shift - where[:, None]) / 9.0) ** 2))
        path.write_bytes(zlib.compress(spectra.astype("<i2").tobytes() + labels.astype("<i2").tobytes(), 1))


class Archive(Dataset):
    def __init__(self, root: Path, opened: int = 3):
        self.paths = sorted(root.glob("block_*.z"))
        self.opened = opened
        self._blocks: OrderedDict[int, tuple[np.ndarray, np.ndarray]] = OrderedDict()

    def __len__(self) -> int:
        return len(self.paths) * PER_BLOCK

    def block(self, b: int):
        if b in self._blocks:
            self._blocks.move_to_end(b)
        else:
            flat = np.frombuffer(zlib.decompress(self.paths[b].read_bytes()), "<i2")
            cut = PER_BLOCK * POINTS
            self._blocks[b] = flat[:cut].reshape(PER_BLOCK, POINTS), flat[cut:]
            if len(self._blocks) > self.opened:
                self._blocks.popitem(last=False)
        return self._blocks[b]

    def __getitem__(self, i: int):
        b, row = divmod(int(i), PER_BLOCK)
        spectra, labels = self.block(b)
        return spectra[row], int(labels[row])


def collate(rows):
    return torch.from_numpy(np.stack([s for s, _ in rows])), torch.tensor([m for _, m in rows])


def run(args) -> None:
    torch.manual_seed(args.seed)
    root = Path(args.archive)
    write_archive(root, args.blocks)
    archive = Archive(root)
    loader = DataLoader(archive, batch_size=64, shuffle=True, drop_last=True, collate_fn=collate)

    net = nn.Sequential(nn.Linear(POINTS, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, MINERALS))
    opt = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)

    it = iter(loader)
    started, passes = perf_counter(), 0
    for step in itertools.count(1):
        try:
            spectra, minerals = next(it)
        except StopIteration:
            passes += 1
            it = iter(loader)
            spectra, minerals = next(it)
        loss = nn.functional.cross_entropy(net(spectra.float() / 2000.0), minerals)
        (loss / args.accumulate).backward()
        if step % args.accumulate == 0:
            opt.step()
            opt.zero_grad()
        if step % 40 == 0:
            rate = step * 64 / (perf_counter() - started)
            print(f"step {step} pass {passes} loss {loss.item():.4f} {rate:.0f} spectra/s", flush=True)
        if step >= args.steps:
            break


if __name__ == "__main__":
    cli = argparse.ArgumentParser()
    cli.add_argument("--archive", default="raman_archive")
    cli.add_argument("--blocks", type=int, default=24)
    cli.add_argument("--steps", type=int, default=400)
    cli.add_argument("--accumulate", type=int, default=2)
    cli.add_argument("--seed", type=int, default=4)
    run(cli.parse_args())
