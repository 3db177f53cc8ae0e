"""Double DQN on a vectorised cart-like task, prioritised by recency, plain Python replay."""

import argparse
import contextlib
import gc
import random
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import nn

HERE = Path("data") / "dqn_buffer"


class Transition:
    __slots__ = ("s", "a", "r", "s2", "done", "info")

    def __init__(self, s, a, r, s2, done, info):
        self.s, self.a, self.r, self.s2, self.done, self.info = s, a, r, s2, done, info


class Replay:
    def __init__(self, cap):
        self.cap, self.items, self.pos = cap, [], 0

    def push(self, t):
        if len(self.items) < self.cap:
            self.items.append(t)
        else:
            self.items[self.pos] = t
        self.pos = (self.pos + 1) % self.cap

    def sample(self, n):
        ts = random.choices(self.items, k=n)
        s = torch.from_numpy(np.stack([t.s for t in ts]))
        s2 = torch.from_numpy(np.stack([t.s2 for t in ts]))
        a = torch.tensor([t.a for t in ts])
        r = torch.tensor([t.r for t in ts])
        d = torch.tensor([t.done for t in ts])
        return s, a, r, s2, d


class Drift:
    def __init__(self, dim=24, seed=0):
        self.rng = np.random.default_rng(seed)
        self.dim = dim
        self.state = self.rng.normal(size=dim).astype(np.float32)

    def step(self, a):
        s = self.state
        n = (0.95 * s + 0.1 * self.rng.standard_normal(self.dim, dtype=np.float32)).astype(np.float32)
        n[a] -= 0.2
        self.state = n
        return s, float(-abs(n[0]) + n[1]), n, bool(abs(n[0]) > 3)


@dataclass
class Agent:
    dim: int = 24
    actions: int = 6
    width: int = 576
    q: nn.Module = field(init=False)
    tgt: nn.Module = field(init=False)

    def build(self):
        return nn.Sequential(
            nn.Linear(self.dim, self.width),
            nn.ReLU(),
            nn.Linear(self.width, self.width),
            nn.ReLU(),
            nn.Linear(self.width, self.width),
            nn.ReLU(),
            nn.Linear(self.width, self.actions),
        )

    def __post_init__(self):
        self.q, self.tgt = self.build(), self.build()
        self.tgt.load_state_dict(self.q.state_dict())


@contextlib.contextmanager
def update_scope():
    try:
        yield
    finally:
        gc.collect()


def warm_start(replay, n):
    HERE.mkdir(parents=True, exist_ok=True)
    f = HERE / "demo.npz"
    if not f.exists():
        rng = np.random.default_rng(5)
        np.savez(f, s=rng.standard_normal((n + 1, 24), dtype=np.float32), a=rng.integers(0, 6, n), r=rng.random(n))
    z = np.load(f)
    s, acts, rew = z["s"], z["a"].tolist(), z["r"].tolist()
    for i in range(n):
        replay.push(Transition(s[i], acts[i], rew[i], s[i + 1], False, {"src": ["demo", i], "w": [1.0]}))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=200)
    ap.add_argument("--batch", type=int, default=256)
    ap.add_argument("--demo", type=int, default=40_000)
    args = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    random.seed(0)
    env, agent, replay = Drift(), Agent(), Replay(200_000)
    warm_start(replay, args.demo)
    opt = torch.optim.Adam(agent.q.parameters(), 3e-4)
    t0, t_rand = 0.0, random.Random(1)
    for step in range(args.steps):
        with torch.no_grad():
            a = t_rand.randrange(6) if t_rand.random() < 0.1 else int(agent.q(torch.from_numpy(env.state)).argmax())
        s, r, s2, d = env.step(a)
        replay.push(Transition(s, a, r, s2, d, {"src": ["env", step], "w": [1.0]}))
        with update_scope():
            s, a, r, s2, d = replay.sample(args.batch)
            with torch.no_grad():
                best = agent.q(s2).argmax(1, keepdim=True)
                y = r + 0.99 * agent.tgt(s2).gather(1, best).squeeze(1) * (~d)
            loss = nn.functional.smooth_l1_loss(agent.q(s).gather(1, a[:, None]).squeeze(1), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        if step % 50 == 0:
            agent.tgt.load_state_dict(agent.q.state_dict())
            print(f"step {step} td {loss.item():.4f}")
        if step == 5:
            t0 = time.perf_counter()
    k = (time.perf_counter() - t0) / (args.steps - 6)
    print(f"{1 / k:.2f} updates/s  {k * 1e3:.1f} ms per update")


if __name__ == "__main__":
    main()
