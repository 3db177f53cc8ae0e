"""Next-item model for a grocery shop: id embeddings and a dense tower."""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn

HERE = Path() / "data_basket"


@dataclass
class Settings:
    articles: int = 600_000
    dim: int = 32
    slots: int = 16
    hidden: int = 768
    batch: int = 256
    baskets: int = 60_000
    save_every: int = 10
    epochs: int = 100


class BasketModel(nn.Module):
    def __init__(self, s: Settings):
        super().__init__()
        self.article = nn.Embedding(s.articles, s.dim, sparse=True)
        self.tower = nn.Sequential(
            nn.Linear(s.slots * s.dim, s.hidden),
            nn.ReLU(),
            nn.Linear(s.hidden, s.hidden),
            nn.ReLU(),
            nn.Linear(s.hidden, 64),
        )

    def forward(self, ids):
        return self.tower(self.article(ids).flatten(1))


class Trainer:
    def __init__(self, settings: Settings, max_steps: int):
        self.s = settings
        self.max_steps = max_steps
        self.model = BasketModel(settings)
        self.opt_ids = torch.optim.SparseAdam(self.model.article.parameters(), lr=1e-3)
        self.opt = torch.optim.Adam(self.model.tower.parameters(), lr=1e-3)
        g = torch.Generator().manual_seed(2)
        self.ids = torch.randint(0, settings.articles, (settings.baskets, settings.slots), generator=g)
        self.aisle = torch.randint(0, 64, (settings.baskets,), generator=g)
        self.step_no = 0

    def save(self):
        HERE.mkdir(exist_ok=True)
        part = HERE / f"{Path(__file__).stem}.part"
        with open(part, "wb") as f:
            torch.save(
                {
                    "model": self.model.state_dict(),
                    "opt_ids": self.opt_ids.state_dict(),
                    "opt": self.opt.state_dict(),
                    "step": self.step_no,
                    "settings": asdict(self.s),
                },
                f,
            )
            f.flush()
            os.fsync(f.fileno())
        os.replace(part, part.with_suffix(".pt"))

    def train_step(self, rows):
        loss = nn.functional.cross_entropy(self.model(self.ids[rows]), self.aisle[rows])
        self.opt.zero_grad()
        self.opt_ids.zero_grad()
        loss.backward()
        self.opt.step()
        self.opt_ids.step()
        return loss

    def fit(self):
        start = time.perf_counter()
        for epoch in range(self.s.epochs):
            for rows in torch.randperm(self.s.baskets).split(self.s.batch):
                loss = self.train_step(rows)
                self.step_no += 1
                if self.step_no % self.s.save_every == 0:
                    self.save()
                if self.step_no == self.max_steps:
                    print(f"{(time.perf_counter() - start) / self.step_no:.4f} s/step")
                    return
            print(f"epoch {epoch}: {loss.item():.3f} after {time.perf_counter() - start:.1f} s", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=-1)
    opts = parser.parse_args()
    torch.set_num_threads(1)
    Trainer(Settings(), opts.steps).fit()
