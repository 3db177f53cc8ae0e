"""Learn to predict the engine evaluation of chess positions.

Positions are parsed from an archive into Position objects; workers are spawned (the engine bindings are not fork-safe).
"""

import argparse
import os
import random
import tempfile
import time
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


@dataclass
class Position:
    game: int
    ply: int
    board: list
    castling: tuple
    eval: float


def parse_archive(path):
    raw = np.load(path)
    boards, evals = raw["boards"].tolist(), raw["evals"].tolist()
    return [Position(i // 40, i % 40, b, (b[0] > 0, b[7] > 0), e) for i, (b, e) in enumerate(zip(boards, evals))]


class Positions(Dataset):
    def __init__(self, positions):
        self.positions = positions

    def __len__(self):
        return len(self.positions)

    def __getitem__(self, i):
        p = self.positions[i]
        return torch.tensor(p.board), torch.tensor(p.eval, dtype=torch.float32)


class LazyPositions(Dataset):
    """--fixed: only the path travels to the workers; arrays are opened there."""

    def __init__(self, path):
        self.path, self.n, self.b = path, len(np.load(path)["evals"]), None

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        if self.b is None:
            z = np.load(self.path)
            self.b, self.e = z["boards"].astype(np.int64), z["evals"].astype(np.float32)
        return torch.from_numpy(self.b[i]), torch.tensor(self.e[i])


class EvalNet(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.emb = nn.Embedding(13, d)
        self.conv = nn.Sequential(
            nn.Conv2d(d, 64, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3, padding=1),
            nn.ReLU(),
        )
        self.out = nn.Sequential(nn.Linear(64 * 64, 128), nn.ReLU(), nn.Linear(128, 1))

    def forward(self, b):
        h = self.emb(b).transpose(1, 2).reshape(len(b), -1, 8, 8)
        return self.out(self.conv(h).flatten(1)).squeeze(1)


def make_archive(path, n):
    rng = np.random.default_rng(5)
    boards = rng.integers(0, 13, (n, 64), dtype=np.int8)
    np.savez(path, boards=boards, evals=(boards[:, :32].sum(1) - boards[:, 32:].sum(1)) / 50.0)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--positions", type=int, default=600_000)
    ap.add_argument("--steps", type=int, default=500)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.set_num_threads(1)
    random.seed(0)
    with tempfile.TemporaryDirectory(prefix="chess_") as tmp:
        path = os.path.join(tmp, "archive.npz")
        make_archive(path, args.positions)
        ds = LazyPositions(path) if args.fixed else Positions(parse_archive(path))
        loader = DataLoader(
            ds, batch_size=128, shuffle=True, num_workers=2, multiprocessing_context="spawn", persistent_workers=True
        )
        net = EvalNet()
        opt = torch.optim.Adam(net.parameters(), 1e-3)
        t0, step = time.time(), 0
        while step < args.steps:
            for boards, target in loader:
                loss = nn.functional.smooth_l1_loss(net(boards), target)
                opt.zero_grad()
                loss.backward()
                opt.step()
                step += 1
                if step == 1:
                    print(f"first step after {time.time() - t0:.1f} s", flush=True)
                if step % 50 == 0:
                    print(f"step {step} loss {loss.item():.4f} t={time.time() - t0:.1f}s", flush=True)
                if step >= args.steps:
                    break
        torch.save(net.state_dict(), os.path.join(tmp, "evalnet.pt"))
