"""Two-tower recommender trained on a session log held in sqlite; the newest towers are kept for the serving job."""

import argparse
import os
import sqlite3
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

BASE = Path("data") / "twotower_publish"
USERS, ITEMS = 90_000, 60_000


def open_log(n=400_000):
    BASE.mkdir(parents=True, exist_ok=True)
    db = BASE / "sessions.db"
    if not db.exists():
        rng = np.random.default_rng(12)
        u = rng.integers(0, USERS, n)
        i = (u * 7 + rng.integers(0, 50, n)) % ITEMS
        tmp = sqlite3.connect(BASE / "part.db")
        tmp.execute("create table s (id integer primary key, u int, i int)")
        tmp.executemany("insert into s (u, i) values (?, ?)", zip(u.tolist(), i.tolist()))
        tmp.commit()
        tmp.close()
        os.rename(BASE / "part.db", db)
    con = sqlite3.connect(db)
    a = np.array(con.execute("select u, i from s").fetchall(), dtype=np.int64)
    con.close()
    return torch.from_numpy(a)


class Tower(nn.Module):
    def __init__(self, n, d=64, h=320):
        super().__init__()
        self.emb = nn.Embedding(n, d, sparse=True)
        self.mlp = nn.Sequential(nn.Linear(d, h), nn.GELU(), nn.Linear(h, h), nn.GELU(), nn.Linear(h, d))

    def forward(self, x):
        return F.normalize(self.mlp(self.emb(x)), dim=-1)


class Recommender:
    def __init__(self, every):
        self.user, self.item = Tower(USERS), Tower(ITEMS)
        self.opt = torch.optim.SGD([*self.user.parameters(), *self.item.parameters()], lr=0.2)
        self.every, self.n = every, 0

    def fit_batch(self, u, i):
        self.opt.zero_grad()
        logits = self.user(u) @ self.item(i).T / 0.07
        loss = F.cross_entropy(logits, torch.arange(len(u)))
        loss.backward()
        self.opt.step()
        self.n += 1
        if self.n % self.every == 0:
            self.publish()
        return loss

    def publish(self):
        state = {
            "user": self.user.state_dict(),
            "item": self.item.state_dict(),
            "opt": self.opt.state_dict(),
            "n": self.n,
        }
        tmp = BASE / "towers.tmp"
        torch.save(state, tmp)
        os.replace(tmp, BASE / "towers.pt")


def pairs(log, bs, steps):
    for _ in range(steps):
        rows = log[torch.randint(len(log), (bs,))]
        yield rows[:, 0], rows[:, 1]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=1500)
    ap.add_argument("--bs", type=int, default=192)
    ap.add_argument("--publish-every", type=int, default=500)
    a = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    log = open_log()
    rec = Recommender(a.publish_every)
    for k, (u, i) in enumerate(pairs(log, a.bs, a.steps)):
        loss = rec.fit_batch(u, i)
        if k == 4:
            t0 = time.perf_counter()
        if k % 100 == 0:
            print(f"{k:5d} loss {loss.item():.4f}", flush=True)
    s = (time.perf_counter() - t0) / (a.steps - 5)
    print(f"{s * 1e3:.1f} ms/step | {1 / s:.2f} steps/s")


if __name__ == "__main__":
    main()
