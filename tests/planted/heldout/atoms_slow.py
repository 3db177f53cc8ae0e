"""Message passing on small molecules: predict a scalar property."""

import argparse, time, math, pickle
from pathlib import Path
import numpy as np
import torch, torch.nn as nn
from torch.utils.data import Dataset, DataLoader

DATA = Path("data") / "atoms"


def make_data(n=6000):
    f = DATA / "mols.pkl"
    if not f.exists():
        DATA.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(0)
        mols = []
        for _ in range(n):
            a = int(rng.integers(14, 30))
            src = np.arange(1, a)
            dst = (rng.random(a - 1) * src).astype(np.int64)
            extra = rng.integers(0, a, (2, 6))
            e = np.concatenate([np.stack([src, dst]), extra], 1)
            e = np.concatenate([e, e[::-1]], 1)
            z = rng.integers(0, 9, a)
            pos = rng.normal(size=(a, 3)).astype(np.float32)
            mols.append((z, pos, e, float(z.sum() / a + 0.1 * pos.std())))
        with open(f, "wb") as fh:
            pickle.dump(mols, fh, protocol=5)
    with open(f, "rb") as fh:
        return pickle.load(fh)


class Molecules(Dataset):
    def __init__(self, mols):
        self.mols = mols

    def __len__(self):
        return len(self.mols)

    def __getitem__(self, i):
        return self.mols[i]


class GraphBatch:
    """Disjoint union of the molecules of one batch."""

    def __init__(self, n_rbf=32, cutoff=4.0):
        self.mu = np.linspace(0, cutoff, n_rbf)

    def __call__(self, mols):
        z, owner, src, dst, feat, y = [], [], [], [], [], []
        base = 0
        for g, (types, pos, edges, target) in enumerate(mols):
            for t in types:
                z.append(int(t))
                owner.append(g)
            for u, v in edges.T:
                src.append(base + int(u))
                dst.append(base + int(v))
                d = math.sqrt(sum((float(a) - float(b)) ** 2 for a, b in zip(pos[u], pos[v])))
                feat.append([math.exp(-8.0 * (d - m) ** 2) for m in self.mu])
            y.append(target)
            base += len(types)
        return (
            torch.tensor(z),
            torch.tensor(owner),
            torch.tensor([src, dst]),
            torch.tensor(feat, dtype=torch.float32),
            torch.tensor(y, dtype=torch.float32),
        )


class MPNN(nn.Module):
    def __init__(self, h=56, rounds=3, n_rbf=32):
        super().__init__()
        self.emb = nn.Embedding(9, h)
        self.msg = nn.ModuleList(
            nn.Sequential(nn.Linear(2 * h + n_rbf, h), nn.SiLU(), nn.Linear(h, h)) for _ in range(rounds)
        )
        self.upd = nn.ModuleList(nn.GRUCell(h, h) for _ in range(rounds))
        self.read = nn.Sequential(nn.Linear(h, h), nn.SiLU(), nn.Linear(h, 1))

    def forward(self, z, owner, edge, feat, n):
        h = self.emb(z)
        for msg, upd in zip(self.msg, self.upd):
            m = msg(torch.cat([h[edge[0]], h[edge[1]], feat], 1))
            h = upd(torch.zeros_like(h).index_add_(0, edge[1], m), h)
        return torch.zeros(n, 1).index_add_(0, owner, self.read(h)).squeeze(1)


class Trainer:
    def __init__(self, args):
        self.args = args
        self.model = MPNN()
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.loader = DataLoader(
            Molecules(make_data()),
            batch_size=args.batch,
            shuffle=True,
            drop_last=True,
            num_workers=args.workers,
            collate_fn=GraphBatch(),
            persistent_workers=args.workers > 0,
        )
        self.ema = [p.detach().clone() for p in self.model.parameters()]

    def step(self, batch):
        z, owner, edge, feat, y = batch
        pred = self.model(z, owner, edge, feat, len(y))
        loss = nn.functional.smooth_l1_loss(pred, y)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        torch._foreach_lerp_(self.ema, [p.detach() for p in self.model.parameters()], 0.01)
        return loss.detach()

    def fit(self):
        done, times, total = 0, [], self.args.steps
        while done < total:
            for batch in self.loader:
                loss = self.step(batch)
                times.append(time.perf_counter())
                done += 1
                if done % 60 == 0:
                    print(f"[{done}] loss {loss:.4f}", flush=True)
                if done >= total:
                    break
        k = (times[-1] - times[5]) / (len(times) - 6)
        print(f"step rate {1 / k:.2f}/s, {k * 1e3:.1f} ms per step")


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--batch", type=int, default=96)
    p.add_argument("--steps", type=int, default=220)
    p.add_argument("--workers", type=int, default=2)
    a = p.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    Trainer(a).fit()
