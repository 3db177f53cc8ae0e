"""Click-through-rate model on tabular impressions (ids, dense features, click history)."""

import argparse
import time
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, default_collate, random_split


@dataclass
class Config:
    rows: int = 275_000
    val_rows: int = 4096
    users: int = 20_000
    items: int = 5_000
    categories: int = 50
    history: int = 10
    dense: int = 12
    dim: int = 16
    batch_size: int = 1024
    epochs: int = 10
    lr: float = 2e-3
    workers: int = 2
    seed: int = 7


def make_impressions(cfg):
    rng = np.random.default_rng(cfg.seed)
    n = cfg.rows
    taste = rng.standard_normal(cfg.users).astype(np.float32)
    appeal = rng.standard_normal(cfg.items).astype(np.float32)
    cols = {
        "user": rng.integers(0, cfg.users, n),
        "item": rng.integers(0, cfg.items, n),
        "category": rng.integers(0, cfg.categories, n),
        "hour": rng.integers(0, 24, n),
        "price": rng.gamma(2.0, 10.0, n).astype(np.float32),
        "dense": rng.standard_normal((n, cfg.dense), dtype=np.float32),
        "history": rng.integers(0, cfg.items, (n, cfg.history)),
    }
    logit = 0.8 * taste[cols["user"]] * appeal[cols["item"]] + 0.5 * cols["dense"][:, 0] - 0.02 * cols["price"]
    cols["label"] = (rng.random(n) < 1 / (1 + np.exp(-logit))).astype(np.float32)
    return cols


class ImpressionDataset(Dataset):
    def __init__(self, cols):
        self.user = cols["user"]
        self.item = cols["item"]
        self.category = cols["category"]
        self.hour = cols["hour"]
        self.price = np.log1p(cols["price"])
        self.dense = cols["dense"]
        self.history = cols["history"]
        self.label = cols["label"]

    def __len__(self):
        return len(self.label)

    def __getitem__(self, idx):
        return {
            "user": torch.tensor(self.user[idx], dtype=torch.long),
            "item": torch.tensor(self.item[idx], dtype=torch.long),
            "category": torch.tensor(self.category[idx], dtype=torch.long),
            "hour": torch.tensor(self.hour[idx], dtype=torch.long),
            "price": torch.tensor(self.price[idx], dtype=torch.float32),
            "dense": torch.tensor(self.dense[idx], dtype=torch.float32),
            "history": torch.tensor(self.history[idx], dtype=torch.long),
            "label": torch.tensor(self.label[idx], dtype=torch.float32),
        }


class ImpressionTable(ImpressionDataset):
    def __getitems__(self, indices):
        rows = np.asarray(indices)
        return {
            "user": torch.from_numpy(self.user[rows]),
            "item": torch.from_numpy(self.item[rows]),
            "category": torch.from_numpy(self.category[rows]),
            "hour": torch.from_numpy(self.hour[rows]),
            "price": torch.from_numpy(self.price[rows]),
            "dense": torch.from_numpy(self.dense[rows]),
            "history": torch.from_numpy(self.history[rows]),
            "label": torch.from_numpy(self.label[rows]),
        }


def as_is(batch):
    return batch


class CTRNet(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.user = nn.Embedding(cfg.users, cfg.dim)
        self.item = nn.Embedding(cfg.items, cfg.dim)
        self.category = nn.Embedding(cfg.categories, 8)
        self.hour = nn.Embedding(24, 4)
        width = 3 * cfg.dim + 8 + 4 + 1 + cfg.dense
        self.mlp = nn.Sequential(
            nn.Linear(width, 128),
            nn.ReLU(),
            nn.Linear(128, 64),
            nn.ReLU(),
            nn.Linear(64, 1),
        )

    def forward(self, b):
        u, i = self.user(b["user"]), self.item(b["item"])
        h = self.item(b["history"]).mean(1)
        x = torch.cat(
            [u, i, u * h, self.category(b["category"]), self.hour(b["hour"]), b["price"].unsqueeze(1), b["dense"]],
            dim=1,
        )
        return self.mlp(x).squeeze(1)


def auc(scores, labels):
    order = np.argsort(scores)
    ranks = np.empty(len(scores))
    ranks[order] = np.arange(1, len(scores) + 1)
    pos = labels > 0.5
    n_pos, n_neg = pos.sum(), (~pos).sum()
    return (ranks[pos].sum() - n_pos * (n_pos + 1) / 2) / max(n_pos * n_neg, 1)


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    scores, labels = [], []
    for b in loader:
        scores.append(torch.sigmoid(model(b)).numpy())
        labels.append(b["label"].numpy())
    model.train()
    return auc(np.concatenate(scores), np.concatenate(labels))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fixed", action="store_true")
    args = parser.parse_args()
    cfg = Config()
    torch.manual_seed(cfg.seed)
    torch.set_num_threads(1)

    cols = make_impressions(cfg)
    dataset = ImpressionTable(cols) if args.fixed else ImpressionDataset(cols)
    collate = as_is if args.fixed else default_collate
    train_set, val_set = random_split(
        dataset, [cfg.rows - cfg.val_rows, cfg.val_rows], generator=torch.Generator().manual_seed(cfg.seed)
    )
    train_loader = DataLoader(
        train_set,
        batch_size=cfg.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=cfg.workers,
        persistent_workers=True,
        collate_fn=collate,
    )
    val_loader = DataLoader(val_set, batch_size=2048, collate_fn=collate)

    model = CTRNet(cfg)
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=cfg.epochs * len(train_loader))

    steps, start = 0, time.time()
    for epoch in range(cfg.epochs):
        running = 0.0
        for i, batch in enumerate(train_loader):
            optimizer.zero_grad()
            loss = F.binary_cross_entropy_with_logits(model(batch), batch["label"])
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            scheduler.step()
            running += loss.item()
            steps += 1
            if (i + 1) % 100 == 0:
                print(f"epoch {epoch} [{i + 1}/{len(train_loader)}] loss {running / (i + 1):.4f}", flush=True)
        print(
            f"epoch {epoch}: loss {running / len(train_loader):.4f} val auc {evaluate(model, val_loader):.4f}",
            flush=True,
        )
    print(f"{steps} steps in {time.time() - start:.1f} s")


if __name__ == "__main__":
    main()
