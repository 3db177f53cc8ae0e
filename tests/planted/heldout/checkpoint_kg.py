"""Knowledge-graph embeddings (TransE). The table is large, a step touches little of it, and we never want to lose work."""

import argparse
import tempfile
import time
from pathlib import Path

import torch
from torch import nn


class TransE(nn.Module):
    def __init__(self, entities, relations, dim):
        super().__init__()
        self.entities = nn.Embedding(entities, dim, sparse=True)
        self.relations = nn.Embedding(relations, dim, sparse=True)

    def forward(self, head, relation, tail):
        return (self.entities(head) + self.relations(relation) - self.entities(tail)).norm(dim=-1)


class Runner:
    def __init__(self, args, folder):
        self.args, self.folder = args, Path(folder)
        torch.manual_seed(args.seed)
        torch.set_num_threads(1)
        self.triples = torch.stack(
            [
                torch.randint(0, args.entities, (args.triples,)),
                torch.randint(0, 40, (args.triples,)),
                torch.randint(0, args.entities, (args.triples,)),
            ],
            1,
        )
        self.model = TransE(args.entities, 40, args.dim)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.5)
        self.step = 0

    def save(self):
        path = self.folder / "last.pt"
        torch.save(
            {"step": self.step, "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}, path
        )

    def train_batch(self, rows):
        h, r, t = self.triples[rows].unbind(1)
        corrupt = torch.randint(0, self.args.entities, (4, len(rows)))
        positive = self.model(h, r, t)
        negative = self.model(h.expand(4, -1), r.expand(4, -1), corrupt)
        loss = nn.functional.relu(1 + positive - negative).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss

    def run(self):
        began = time.time()
        for epoch in range(self.args.epochs):
            for rows in torch.randperm(len(self.triples)).split(self.args.batch_size):
                loss = self.train_batch(rows)
                self.step += 1
                if self.step % self.args.save_every == 0:
                    self.save()
                if self.step % 50 == 0:
                    print(
                        f"{epoch}:{self.step} loss={loss.item():.4f} {(time.time() - began) / self.step * 1e3:.1f} ms/step",
                        flush=True,
                    )
                if time.time() - began > self.args.max_seconds:
                    self.save()
                    return


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--entities", type=int, default=600_000)
    p.add_argument("--dim", type=int, default=128)
    p.add_argument("--triples", type=int, default=200_000)
    p.add_argument("--batch-size", type=int, default=512)
    p.add_argument("--epochs", type=int, default=100)
    p.add_argument("--save-every", type=int, default=20, help="steps between checkpoints")
    p.add_argument("--max-seconds", type=float, default=90)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--fixed", action="store_true", help="save every 1000 steps")
    args = p.parse_args()
    if args.fixed:
        args.save_every = 1000
    with tempfile.TemporaryDirectory() as folder:
        Runner(args, folder).run()
