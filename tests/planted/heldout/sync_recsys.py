"""Two-tower recommender on the (simulated) accelerator, with popularity-weighted negatives drawn on the host."""

import argparse
import time

import numpy as np
import torch
from torch import nn
from tqdm import tqdm

from stoker import sim

USERS, ITEMS = 20_000, 60_000


class Towers(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.user = nn.Embedding(USERS, width, sparse=True)
        self.item = nn.Embedding(ITEMS, width, sparse=True)

    def forward(self, users, items):
        return torch.einsum("bd,bkd->bk", self.user(users), self.item(items))


def interactions(count, seed):
    rng = np.random.default_rng(seed)
    users = rng.integers(0, USERS, count)
    items = np.minimum(rng.zipf(1.3, count), ITEMS) - 1
    return users, items


def negatives(rng, cumulative, positives, k):
    """k items per positive, by popularity: three times as many are drawn, those that are the positive go last."""
    drawn = np.searchsorted(cumulative, rng.random((len(positives), 3 * k)))
    order = np.argsort(drawn == positives[:, None], axis=1, kind="stable")
    return np.take_along_axis(drawn, order[:, :k], 1)


def train(args):
    rng = np.random.default_rng(args.seed)
    users, items = interactions(args.rows, args.seed)
    cumulative = np.cumsum(np.bincount(items, minlength=ITEMS) ** 0.75)
    cumulative /= cumulative[-1]
    model = Towers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    device = sim.Device(forward=6e-3, backward=8e-3, optimizer=2e-3)
    model = device.place(model, optimizer)
    target = torch.zeros(args.batch, dtype=torch.long, device=device)
    began, step = time.time(), 0
    while time.time() - began < args.seconds:
        order = rng.permutation(args.rows)
        bar = tqdm(range(0, args.rows - args.batch + 1, args.batch), mininterval=2)
        running = torch.zeros((), device=device)
        for lo in bar:
            rows = order[lo : lo + args.batch]
            candidates = np.concatenate([items[rows, None], negatives(rng, cumulative, items[rows], args.negatives)], 1)
            u = torch.from_numpy(users[rows]).to(device, non_blocking=True)
            c = torch.from_numpy(candidates).to(device, non_blocking=True)
            scores = model(u, c)
            loss = nn.functional.cross_entropy(scores, target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if args.fixed:
                running += loss.detach()
                if step % 100 == 0:
                    bar.set_postfix(loss=running.item() / 100, refresh=False)
                    running.zero_()
            else:
                top1 = (scores.argmax(1) == 0).float().mean().item()
                bar.set_postfix(loss=loss.item(), top1=top1, refresh=False)
        if time.time() - began > args.seconds:
            break
    print(f"{step} steps, {(time.time() - began) / step * 1e3:.1f} ms each")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=250_000)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--negatives", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=85)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fixed", action="store_true", help="read the loss every 100 steps only")
    train(parser.parse_args())
