"""Merchant embeddings from card transactions (who pays where, after where)."""

import gzip
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

WORK = Path("data_merchant_vectors")
MERCHANTS, WIDTH = 9000, 64


def sequences(n=48_000, context=6):
    f = WORK / "context.npy"
    if not f.exists():
        WORK.mkdir(exist_ok=True)
        np.save(f, np.random.default_rng(0).integers(0, MERCHANTS, (n, context + 1)))
    return torch.from_numpy(np.load(f))


class Context(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(MERCHANTS, WIDTH)
        self.mix = nn.Sequential(nn.Linear(6 * WIDTH, 128), nn.ReLU(), nn.Linear(128, WIDTH))

    def forward(self, context, candidates):
        query = self.mix(self.table(context).flatten(1))
        return query @ self.table(candidates).T


class Snapshots:
    """Archive so that the spot instance can be taken away at any time; the bucket bills by the byte."""

    def __init__(self, folder, keep=2):
        self.folder, self.keep, self.written = folder, keep, []
        folder.mkdir(exist_ok=True)

    def take(self, step, model, opt):
        path = self.folder / f"step{step % (10 * self.keep * 100)}.pt.gz"
        with gzip.open(path, "wb", compresslevel=5) as f:
            torch.save({"step": step, "model": model.state_dict(), "opt": opt.state_dict()}, f)
        self.written.append(path)
        while len(self.written) > self.keep:
            self.written.pop(0).unlink(missing_ok=True)


def main():
    torch.manual_seed(0)
    rows = sequences()
    loader = DataLoader(TensorDataset(rows), batch_size=256, shuffle=True, drop_last=True)
    model = Context()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    snapshots = Snapshots(WORK / "snapshots")
    step = 0
    for epoch in range(3):
        t0 = time.perf_counter()
        total = torch.zeros(())
        for (batch,) in loader:
            candidates = torch.cat([batch[:, -1], torch.randint(0, MERCHANTS, (1024,))])
            logits = model(batch[:, :-1], candidates)
            loss = nn.functional.cross_entropy(logits, torch.arange(len(batch)))
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.detach()
            step += 1
            if step % 8 == 0:
                snapshots.take(step, model, opt)
        print(f"epoch {epoch} {total.item() / len(loader):.4f}")
        print(f"epoch_seconds {time.perf_counter() - t0:.3f}", flush=True)


if __name__ == "__main__":
    main()
