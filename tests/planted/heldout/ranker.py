"""Learning to rank: order the 40 candidate documents of a query by relevance grade."""

import argparse
import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

CANDIDATES = 40
FEATURES = 64


@dataclass
class Query:
    features: torch.Tensor
    grades: list


class QueryLog(Dataset):
    def __init__(self, count, seed):
        rng = np.random.default_rng(seed)
        taste = rng.normal(size=FEATURES)
        x = rng.normal(size=(count, CANDIDATES, FEATURES)).astype(np.float32)
        liking = x @ taste + rng.normal(0, 2.0, (count, CANDIDATES))
        self.grades = np.digitize(liking, np.quantile(liking, [0.4, 0.7, 0.9]))
        self.features = torch.from_numpy(x)

    def __len__(self):
        return len(self.features)

    def __getitem__(self, q):
        return Query(self.features[q], self.grades[q].tolist())


class PairwiseHinge(nn.Module):
    """Every better document shall beat every worse one by a margin, weighted by the gap in grade."""

    def __init__(self, margin=1.0):
        super().__init__()
        self.margin = margin

    def forward(self, scores, grades):
        total = scores.new_zeros(())
        pairs = 0
        for i in range(len(grades)):
            for j in range(len(grades)):
                if grades[i] > grades[j]:
                    gap = grades[i] - grades[j]
                    total = total + gap * torch.relu(self.margin - (scores[i] - scores[j]))
                    pairs += 1
        return total / max(pairs, 1)


class Scorer(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(FEATURES, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)
        )

    def forward(self, features):
        return self.net(features).squeeze(-1)


class Ranker:
    def __init__(self, args):
        torch.manual_seed(args.seed)
        self.queries = DataLoader(QueryLog(args.queries, args.seed), batch_size=None, shuffle=True)
        self.scorer = Scorer()
        self.loss = PairwiseHinge()
        self.opt = torch.optim.Adam(self.scorer.parameters(), lr=3e-4)

    def fit(self, epochs):
        for epoch in range(epochs):
            start, running = time.perf_counter(), 0.0
            for n, query in enumerate(self.queries, start=1):
                loss = self.loss(self.scorer(query.features), query.grades)
                self.opt.zero_grad()
                loss.backward()
                self.opt.step()
                running += loss.item()
                if n % 100 == 0:
                    print(
                        f"epoch {epoch} query {n} hinge {running / n:.4f} ({time.perf_counter() - start:.1f} s)",
                        flush=True,
                    )
        return self


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--queries", type=int, default=400)
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--seed", type=int, default=31)
    args = ap.parse_args()
    Ranker(args).fit(args.epochs)
