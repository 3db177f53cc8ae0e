"""Policy/value training from a prioritised buffer of self-play positions."""

import os
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, Sampler

FOLDER = "data_chessreplay"
PLANES, MOVES = 14, 512


def selfplay_dump(n=60_000):
    path = os.path.join(FOLDER, "buffer.npz")
    if not os.path.exists(path):
        os.makedirs(FOLDER, exist_ok=True)
        rng = np.random.default_rng(17)
        boards = np.packbits(rng.random((n, PLANES * 64), dtype=np.float32) < 0.08, axis=1)
        np.savez(
            os.path.join(FOLDER, "tmp.npz"),
            boards=boards,
            move=rng.integers(0, MOVES, n),
            result=rng.integers(-1, 2, n).astype(np.float32),
            td=rng.gamma(1.5, 0.4, n),
        )
        os.rename(os.path.join(FOLDER, "tmp.npz"), path)
    return np.load(path)


class ReplayBuffer(Dataset):
    def __init__(self, z):
        self.boards, self.move, self.result = z["boards"], z["move"], z["result"]
        self.td = z["td"].astype(np.float64)

    def __len__(self):
        return len(self.boards)

    def __getitems__(self, idx):
        idx = np.asarray(idx)
        x = np.unpackbits(self.boards[idx], axis=1)[:, : PLANES * 64].reshape(-1, PLANES, 8, 8)
        return (
            torch.from_numpy(idx),
            torch.from_numpy(x.astype(np.float32)),
            torch.from_numpy(self.move[idx]),
            torch.from_numpy(self.result[idx]),
        )

    def feedback(self, idx, err):
        self.td[idx.numpy()] = err.numpy() + 1e-3


class PriorityBatches(Sampler):
    """P(i) ~ |td_i|^alpha, with the priorities as of the start of each block of batches."""

    def __init__(self, buf, draws, batch, alpha=0.6, seed=0, block=16):
        self.buf, self.batch, self.alpha, self.block = buf, batch, alpha, block
        self.n = draws // batch
        self.rng = np.random.default_rng(seed)

    def __len__(self):
        return self.n

    def __iter__(self):
        for k in range(0, self.n, self.block):
            cdf = np.cumsum(self.buf.td**self.alpha)
            u = self.rng.random((min(self.block, self.n - k), self.batch)) * cdf[-1]
            yield from np.minimum(np.searchsorted(cdf, u), len(cdf) - 1)


class Tower(nn.Module):
    def __init__(self, ch=72, blocks=2):
        super().__init__()
        self.stem = nn.Conv2d(PLANES, ch, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(ch, ch, 3, padding=1),
                nn.BatchNorm2d(ch),
                nn.ReLU(),
                nn.Conv2d(ch, ch, 3, padding=1),
                nn.BatchNorm2d(ch),
            )
            for _ in range(blocks)
        )
        self.policy = nn.Sequential(nn.Conv2d(ch, 8, 1), nn.ReLU(), nn.Flatten(), nn.Linear(512, MOVES))
        self.value = nn.Sequential(
            nn.Conv2d(ch, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 1), nn.Tanh()
        )

    def forward(self, x):
        x = F.relu(self.stem(x))
        for b in self.blocks:
            x = F.relu(x + b(x))
        return self.policy(x), self.value(x).squeeze(-1)


def learner(iterations=16, draws=6336, batch=96):
    buf = ReplayBuffer(selfplay_dump())
    loader = DataLoader(buf, batch_sampler=PriorityBatches(buf, draws, batch), collate_fn=lambda b: b)
    net = Tower()
    opt = torch.optim.SGD(net.parameters(), 0.02, momentum=0.9, nesterov=True, weight_decay=1e-4)
    for it in range(iterations):
        t0 = time.time()
        for k, (idx, x, mv, res) in enumerate(loader, 1):
            logits, v = net(x)
            pol = F.cross_entropy(logits, mv, reduction="none")
            val = (v - res).square()
            loss = (pol + val).mean()
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            buf.feedback(idx, val.detach())
            if k % 20 == 0:
                print(
                    f"it {it} batch {k} loss {loss.item():.3f} {k * batch / (time.time() - t0):.0f} pos/s", flush=True
                )
        print(f"iteration {it} {time.time() - t0:.1f}s", flush=True)


if __name__ == "__main__":
    torch.manual_seed(7)
    learner()
