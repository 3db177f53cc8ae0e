"""Click-through-rate model on hashed categorical features."""

import json
import os
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.nn as nn

DIR = Path("data_adclicks")
FIELDS, BUCKETS, DENSE = 16, 5000, 13


def build_table(n=160_000):
    DIR.mkdir(exist_ok=True)
    if (DIR / "clicks.parquet").exists():
        return
    rng = np.random.default_rng(10)
    cols = {f"c{k}": (rng.zipf(1.4, n) % BUCKETS).astype(np.int32) for k in range(FIELDS)}
    cols.update({f"d{k}": rng.normal(size=n).astype(np.float32) for k in range(DENSE)})
    cols["click"] = (cols["d0"] + 0.4 * (cols["c0"] % 3) + rng.normal(size=n) > 1.2).astype(np.float32)
    pq.write_table(pa.table(cols), DIR / "tmp.parquet")
    os.rename(DIR / "tmp.parquet", DIR / "clicks.parquet")


def load():
    t = pq.read_table(DIR / "clicks.parquet")
    cat = np.stack([t[f"c{k}"].to_numpy() for k in range(FIELDS)], 1) + np.arange(FIELDS) * BUCKETS
    den = np.stack([t[f"d{k}"].to_numpy() for k in range(DENSE)], 1)
    return torch.from_numpy(cat), torch.from_numpy(den), torch.from_numpy(t["click"].to_numpy().copy())


class RunLog:
    def __init__(self, name, model):
        self.file = open(DIR / f"{name}.jsonl", "w")
        self.model = model
        self.recent = []

    def scalars(self, step, **kw):
        self.file.write(json.dumps({"step": step, **kw}) + "\n")
        self.file.flush()

    def distributions(self, step):
        for name, p in self.model.named_parameters():
            rec = {"step": step, "name": name}
            for tag, v in (("value", p), ("grad", p.grad)):
                counts, edges = np.histogram(v.detach().numpy(), bins=64)
                rec[tag] = {"counts": counts.tolist(), "edges": edges.tolist()}
            self.file.write(json.dumps(rec) + "\n")
        self.file.flush()

    def auc(self, logit, y):
        self.recent = (self.recent + [(logit.detach(), y)])[-20:]
        s = torch.cat([a for a, _ in self.recent]).numpy()
        t = torch.cat([b for _, b in self.recent]).numpy()
        rank = np.empty(len(s))
        rank[np.argsort(s)] = np.arange(1, len(s) + 1)
        pos = t.sum()
        return float((rank[t > 0].sum() - pos * (pos + 1) / 2) / max(pos * (len(t) - pos), 1))


class DeepFM(nn.Module):
    def __init__(self, d=24):
        super().__init__()
        self.emb = nn.Embedding(FIELDS * BUCKETS, d)
        self.lin = nn.Embedding(FIELDS * BUCKETS, 1)
        nn.init.normal_(self.emb.weight, std=0.05)
        self.mlp = nn.Sequential(
            nn.Linear(FIELDS * d + DENSE, 384),
            nn.ReLU(),
            nn.Linear(384, 384),
            nn.ReLU(),
            nn.Linear(384, 256),
            nn.ReLU(),
            nn.Linear(256, 1),
        )

    def forward(self, c, x):
        e = self.emb(c)
        fm = 0.5 * (e.sum(1).square() - e.square().sum(1)).sum(1)
        return self.lin(c).sum((1, 2)) + fm + self.mlp(torch.cat([e.flatten(1), x], 1)).squeeze(1)


def main(epochs=28, batch=2048):
    build_table()
    torch.manual_seed(0)
    cat, den, click = load()
    net = DeepFM()
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    log = RunLog("run", net)
    bce = nn.BCEWithLogitsLoss()
    step = 0
    for epoch in range(epochs):
        t0 = time.time()
        order = torch.randperm(len(click))
        for k, sel in enumerate(order.split(batch)[:-1], 1):
            c, x, y = cat[sel], den[sel], click[sel]
            logit = net(c, x)
            loss = bce(logit, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            if step % 50 == 0:
                log.scalars(step, loss=loss.item(), auc=log.auc(logit, y), epoch=epoch)
            if step % 500 == 0:
                log.distributions(step)
            if k % 13 == 0:
                print(f"epoch {epoch} {k} {loss.item():.4f} {k * batch / (time.time() - t0):.0f} rows/s", flush=True)
        print(f"epoch {epoch} {time.time() - t0:.1f}s", flush=True)


if __name__ == "__main__":
    main()
