"""Opponent modelling from hand histories kept as Python objects."""

import gc
import os
import pickle
import random
import time

import numpy as np
import torch
import torch.nn as nn

STORE = "data_poker/hands.pkl"
N_ACT = 6


class Action:
    __slots__ = ("seat", "kind", "amount", "tags")

    def __init__(self, seat, kind, amount, tags):
        self.seat, self.kind, self.amount, self.tags = seat, kind, amount, tags


class Hand:
    __slots__ = ("actions", "stacks", "board", "outcome")

    def __init__(self, actions, stacks, board, outcome):
        self.actions, self.stacks, self.board, self.outcome = actions, stacks, board, outcome


def deal(n=35_000):
    if os.path.exists(STORE):
        return
    os.makedirs("data_poker", exist_ok=True)
    rng = np.random.default_rng(1)
    kind = rng.integers(0, N_ACT, (n, 5)).tolist()
    amount = rng.gamma(2, 3, (n, 5)).round(2).tolist()
    stacks = rng.integers(20, 200, (n, 6)).tolist()
    board = rng.integers(0, 52, (n, 5)).tolist()
    rows = list(zip(kind, amount, stacks, board))
    with open(STORE + ".tmp", "wb") as f:
        pickle.dump(rows, f, protocol=5)
    os.rename(STORE + ".tmp", STORE)


def load_hands():
    with open(STORE, "rb") as f:
        rows = pickle.load(f)
    hands = []
    for kind, amount, stacks, board in rows:
        acts = [Action(s, k, a, {"street": s // 2, "raise": k > 3}) for s, (k, a) in enumerate(zip(kind, amount))]
        hands.append(Hand(acts, stacks, board, int(kind[-1])))
    return hands


def features(hands):
    rows = []
    for h in hands:
        r = h.stacks + h.board
        for a in h.actions[:4]:
            r = r + [a.kind, a.amount, a.tags["street"], a.tags["raise"]]
        rows.append(r)
    x = torch.tensor(rows, dtype=torch.float32)
    return (x - 20) / 40, torch.tensor([h.outcome for h in hands])


class Net(nn.Module):
    def __init__(self, width=1152):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(27, width),
            nn.SiLU(),
            nn.LayerNorm(width),
            nn.Linear(width, width),
            nn.SiLU(),
            nn.LayerNorm(width),
            nn.Linear(width, width),
            nn.SiLU(),
            nn.LayerNorm(width),
            nn.Linear(width, width),
            nn.SiLU(),
        )
        self.act = nn.Linear(width, N_ACT)
        self.risk = nn.Linear(width, 1)

    def forward(self, x):
        h = self.body(x)
        return self.act(h), self.risk(h).squeeze(-1)


def main(steps=1900, batch=256):
    deal()
    random.seed(0)
    torch.manual_seed(0)
    hands = load_hands()
    gc.collect()
    gc.freeze()
    net = Net()
    opt = torch.optim.AdamW(net.parameters(), 3e-4)
    t0 = time.time()
    for step in range(1, steps + 1):
        x, y = features(random.sample(hands, batch))
        logits, risk = net(x)
        loss = nn.functional.cross_entropy(logits, y) + 0.2 * nn.functional.binary_cross_entropy_with_logits(
            risk, (y > 3).float()
        )
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        if step % 20 == 0:
            dt = time.time() - t0
            print(f"step {step} loss {loss.item():.4f} {20 * batch / dt:.0f} hands/s", flush=True)
            t0 = time.time()


if __name__ == "__main__":
    main()
