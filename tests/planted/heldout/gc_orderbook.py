"""Predict the next mid-price move from the order book. Books are kept as Python objects, as the feed handler makes them."""

import argparse
import gc
import random
import time

import torch
from torch import nn


class Level:
    def __init__(self, price, size):
        self.price, self.size, self.orders = price, size, []


class Book:
    def __init__(self, mid, rng):
        self.bids = [Level(mid - i, rng.randint(1, 50)) for i in range(1, 11)]
        self.asks = [Level(mid + i, rng.randint(1, 50)) for i in range(1, 11)]
        self.mid = mid
        self.next = None

    def sizes(self):
        return [level.size for level in self.bids] + [level.size for level in self.asks]


class Feed:
    """A day of books, linked to their successors."""

    def __init__(self, count, seed):
        rng = random.Random(seed)
        self.books, mid = [], 10_000
        for _ in range(count):
            book = Book(mid, rng)
            if self.books:
                self.books[-1].next = book
            self.books.append(book)
            pressure = sum(l.size for l in book.bids[:3]) - sum(l.size for l in book.asks[:3])
            mid += 1 if pressure > rng.gauss(0, 10) else -1

    def batch(self, rows):
        picked = [self.books[r] for r in rows]
        x = torch.tensor([book.sizes() for book in picked], dtype=torch.float32) / 50
        y = torch.tensor([float(book.next.mid > book.mid) for book in picked])
        return x, y


def parse():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--books", type=int, default=25_000)
    p.add_argument("--batch", type=int, default=128)
    p.add_argument("--collect-every", type=int, default=10, help="steps between collections; memory crept up once")
    p.add_argument("--seconds", type=float, default=85)
    p.add_argument("--fixed", action="store_true", help="freeze the feed out of the collector's sight")
    return p.parse_args()


def main():
    args = parse()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    feed = Feed(args.books, seed=4)
    model = nn.Sequential(nn.Linear(20, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    if args.fixed:
        gc.collect()
        gc.freeze()
    began, step, epoch = time.time(), 0, 0
    while time.time() - began < args.seconds:
        total, count = 0.0, 0
        for rows in torch.randperm(args.books - 1).split(args.batch):
            x, y = feed.batch(rows.tolist())
            loss = nn.functional.binary_cross_entropy_with_logits(model(x).squeeze(1), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total, count, step = total + loss.item(), count + 1, step + 1
            if step % args.collect_every == 0:
                gc.collect()
        print(f"epoch {epoch} loss {total / count:.4f} after {step} steps, {time.time() - began:.0f} s", flush=True)
        epoch += 1


main()
