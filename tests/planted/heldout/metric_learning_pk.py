"""Embedding model for product matching, batch-hard triplet loss with P x K batches."""

import argparse
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, Sampler

CFG = {
    "items": 1_000_000,
    "classes": 1000,
    "features": 32,
    "p": 32,
    "k": 4,
    "batches_per_epoch": 460,
    "epochs": 5,
    "hidden": 512,
    "embed": 64,
    "margin": 0.3,
    "lr": 1e-3,
    "seed": 3,
}


def make_items(cfg):
    rng = np.random.default_rng(cfg["seed"])
    labels = rng.integers(0, cfg["classes"], cfg["items"])
    centres = rng.standard_normal((cfg["classes"], cfg["features"]), dtype=np.float32)
    x = rng.standard_normal((cfg["items"], cfg["features"]), dtype=np.float32)
    x += centres[labels]
    return x, labels


class ItemDataset(Dataset):
    def __init__(self, x, labels):
        self.x = torch.from_numpy(x)
        self.labels = labels

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, idx):
        return self.x[idx], int(self.labels[idx])


class PKBatchSampler(Sampler):
    """Every batch holds P classes with K items each."""

    def __init__(self, labels, p, k, num_batches, seed=0):
        self.labels = labels
        self.classes = np.unique(labels)
        self.p, self.k = p, k
        self.num_batches = num_batches
        self.rng = np.random.default_rng(seed)

    def members(self, c):
        return np.where(self.labels == c)[0]

    def __iter__(self):
        for _ in range(self.num_batches):
            batch = []
            for c in self.rng.choice(self.classes, self.p, replace=False):
                batch.extend(self.rng.choice(self.members(c), self.k, replace=False).tolist())
            yield batch

    def __len__(self):
        return self.num_batches


class IndexedPKBatchSampler(PKBatchSampler):
    def __init__(self, labels, p, k, num_batches, seed=0):
        super().__init__(labels, p, k, num_batches, seed)
        order = np.argsort(labels, kind="stable")
        cuts = np.searchsorted(labels[order], self.classes)
        self.table = dict(zip(self.classes.tolist(), np.split(order, cuts[1:])))

    def members(self, c):
        return self.table[int(c)]


class Embedder(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(cfg["features"], cfg["hidden"]),
            nn.ReLU(),
            nn.Linear(cfg["hidden"], cfg["hidden"]),
            nn.ReLU(),
            nn.Linear(cfg["hidden"], cfg["embed"]),
        )

    def forward(self, x):
        return F.normalize(self.net(x), dim=1)


def batch_hard_triplet(z, y, margin):
    dist = (2 - 2 * z @ z.t()).clamp_min(1e-8).sqrt()
    same = y.unsqueeze(0) == y.unsqueeze(1)
    hardest_pos = (dist * same).max(dim=1).values
    hardest_neg = dist.masked_fill(same, 10.0).min(dim=1).values
    return F.relu(hardest_pos - hardest_neg + margin).mean()


@torch.no_grad()
def recall_at_1(model, x, y):
    z = model(x)
    sim = z @ z.t()
    sim.fill_diagonal_(-2.0)
    return (y[sim.argmax(1)] == y).float().mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fixed", action="store_true")
    args = parser.parse_args()
    cfg = CFG
    torch.manual_seed(cfg["seed"])

    x, labels = make_items(cfg)
    held_out = np.where(labels < 20)[0][:1000]
    x_val, y_val = torch.from_numpy(x[held_out]), torch.from_numpy(labels[held_out])

    start = time.time()
    sampler_cls = IndexedPKBatchSampler if args.fixed else PKBatchSampler
    sampler = sampler_cls(labels, cfg["p"], cfg["k"], cfg["batches_per_epoch"], seed=cfg["seed"])
    loader = DataLoader(ItemDataset(x, labels), batch_sampler=sampler)

    model = Embedder(cfg)
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg["lr"])
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)

    steps = 0
    for epoch in range(cfg["epochs"]):
        total = 0.0
        for i, (feats, targets) in enumerate(loader):
            loss = batch_hard_triplet(model(feats), targets, cfg["margin"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
            steps += 1
            if (i + 1) % 115 == 0:
                print(f"epoch {epoch} batch {i + 1}/{len(sampler)} loss {total / (i + 1):.4f}", flush=True)
        scheduler.step()
        print(
            f"epoch {epoch}: loss {total / len(sampler):.4f} recall@1 {recall_at_1(model, x_val, y_val):.3f}",
            flush=True,
        )
    print(f"{steps} steps in {time.time() - start:.1f} s")


if __name__ == "__main__":
    main()
