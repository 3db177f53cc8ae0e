import argparse, time, json
from pathlib import Path
import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset, DataLoader
from tqdm import tqdm

BASE = Path("data") / "ctr_rows"
ROW = np.dtype(
    [("ts", "<i8"), ("user", "<i4"), ("ad", "<i4"), ("ctx", "<i2", (6,)), ("dense", "<f4", (13,)), ("click", "u1")]
)
N = 600_000


def ensure_log():
    path = BASE / "clicks.dat"
    if path.exists():
        return path
    BASE.mkdir(parents=True, exist_ok=True)
    g = np.random.default_rng(99)
    rows = np.zeros(N, ROW)
    rows["ts"] = np.sort(g.integers(0, 10**9, N))
    rows["user"] = g.integers(0, 20000, N)
    rows["ad"] = g.integers(0, 3000, N)
    rows["ctx"] = g.integers(0, 50, (N, 6))
    rows["dense"] = g.normal(size=(N, 13))
    rows["click"] = rows["dense"][:, 0] + (rows["ad"] % 7) / 7 > 0.9
    tmp = path.with_suffix(".tmp")
    rows.tofile(tmp)
    tmp.rename(path)
    return path


class ClickLog(Dataset):
    """Rows of the click log, mapped from disk."""

    def __init__(self, path):
        self.rows = np.memmap(path, dtype=ROW, mode="r")
        head = self.rows["dense"][:20000]
        self.mean, self.std = head.mean(0), head.std(0)

    def __len__(self):
        return len(self.rows)

    def __getitems__(self, idx):
        r = self.rows[np.asarray(idx)]
        cat = np.empty((len(r), 8), np.int64)
        cat[:, 0], cat[:, 1] = r["user"], r["ad"]
        cat[:, 2:] = r["ctx"]
        return cat, (r["dense"] - self.mean) / self.std, r["click"].astype(np.float32)


def stack(cols):
    return tuple(torch.from_numpy(c) for c in cols)


class RowBatches:
    def __init__(self, n, batch, steps, seed=0):
        self.n, self.batch, self.steps, self.rng = n, batch, steps, np.random.default_rng(seed)

    def __len__(self):
        return self.steps

    def __iter__(self):
        for _ in range(self.steps):
            yield self.rng.integers(0, self.n, self.batch)


class DeepFM(nn.Module):
    def __init__(self, k=4, hidden=32):
        super().__init__()
        self.register_buffer("off", torch.tensor([0, 20000] + [23000 + 50 * j for j in range(6)]))
        self.emb = nn.Embedding(23300, k)
        self.lin = nn.Embedding(23300, 1)
        self.mlp = nn.Sequential(
            nn.Linear(8 * k + 13, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1)
        )

    def forward(self, cat, dense):
        idx = cat + self.off
        e = self.emb(idx)
        fm = 0.5 * (e.sum(1) ** 2 - (e**2).sum(1)).sum(1)
        deep = self.mlp(torch.cat([e.flatten(1), dense], 1)).squeeze(1)
        return fm + deep + self.lin(idx).sum((1, 2))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=500)
    ap.add_argument("--batch", type=int, default=12288)
    ap.add_argument("--workers", type=int, default=2)
    opt = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(5)
    ds = ClickLog(ensure_log())
    loader = DataLoader(
        ds, batch_sampler=RowBatches(len(ds), opt.batch, opt.steps), num_workers=opt.workers, collate_fn=stack
    )
    net = DeepFM()
    optim = torch.optim.Adagrad(net.parameters(), lr=0.02)
    bce = nn.BCEWithLogitsLoss()
    run, t0 = 0.0, time.perf_counter()
    bar = tqdm(loader, total=opt.steps, mininterval=2.0)
    for n, (cat, dense, click) in enumerate(bar):
        if n == 5:
            t0 = time.perf_counter()
        loss = bce(net(cat, dense), click)
        optim.zero_grad()
        loss.backward()
        optim.step()
        if n % 25 == 0:
            run = loss.item()
            bar.set_postfix(loss=f"{run:.3f}", refresh=False)
    ms = 1e3 * (time.perf_counter() - t0) / max(1, opt.steps - 5)
    print(json.dumps({"loss": round(run, 4), "ms_per_step": round(ms, 2), "steps_per_s": round(1e3 / ms, 2)}))


if __name__ == "__main__":
    main()
