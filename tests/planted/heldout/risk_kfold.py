"""Five-fold cross-validation of a credit-risk MLP."""

import argparse
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Subset, TensorDataset

params = {
    "rows": 20_480,
    "features": 64,
    "hidden": 1536,
    "folds": 5,
    "epochs": 3,
    "batch_size": 256,
    "lr": 3e-4,
    "seed": 42,
}


def make_table(p):
    g = torch.Generator().manual_seed(p["seed"])
    x = torch.randn(p["rows"], p["features"], generator=g)
    w = torch.randn(p["features"], generator=g) / 8
    logit = x @ w + 0.5 * x[:, 0] * x[:, 1] - 1.0
    y = (torch.rand(p["rows"], generator=g) < torch.sigmoid(logit)).float()
    return TensorDataset(x, y)


def kfold(n, k, seed):
    order = np.random.default_rng(seed).permutation(n)
    parts = np.array_split(order, k)
    for i in range(k):
        yield np.concatenate(parts[:i] + parts[i + 1 :]).tolist(), parts[i].tolist()


def build(p):
    return nn.Sequential(
        nn.Linear(p["features"], p["hidden"]),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(p["hidden"], p["hidden"]),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(p["hidden"], 1),
    )


def roc_auc(scores, labels):
    ranks = np.argsort(np.argsort(scores)) + 1
    pos = labels == 1
    n_pos, n_neg = int(pos.sum()), int((~pos).sum())
    return (ranks[pos].sum() - n_pos * (n_pos + 1) / 2) / (n_pos * n_neg)


@torch.no_grad()
def predict(model, loader):
    model.eval()
    out = [(torch.sigmoid(model(x).squeeze(1)), y) for x, y in loader]
    return torch.cat([s for s, _ in out]).numpy(), torch.cat([y for _, y in out]).numpy()


def train_one_epoch(model, loader, optimizer, scheduler):
    model.train()
    total, correct, seen = 0.0, 0, 0
    for x, y in loader:
        optimizer.zero_grad()
        logits = model(x).squeeze(1)
        loss = F.binary_cross_entropy_with_logits(logits, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        total += loss.item() * len(y)
        correct += ((logits > 0).float() == y).sum().item()
        seen += len(y)
    return total / seen, correct / seen


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fixed", action="store_true")
    parser.parse_args()
    p = params
    table = make_table(p)
    steps, aucs, start = 0, [], time.time()
    for fold, (train_idx, val_idx) in enumerate(kfold(len(table), p["folds"], p["seed"])):
        torch.manual_seed(p["seed"] + fold)
        train_loader = DataLoader(Subset(table, train_idx), batch_size=p["batch_size"], shuffle=True)
        val_loader = DataLoader(Subset(table, val_idx), batch_size=1024)
        model = build(p)
        optimizer = torch.optim.AdamW(model.parameters(), lr=p["lr"], weight_decay=1e-2)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, p["epochs"] * len(train_loader))
        for epoch in range(p["epochs"]):
            loss, acc = train_one_epoch(model, train_loader, optimizer, scheduler)
            steps += len(train_loader)
            print(f"fold {fold} epoch {epoch} loss {loss:.4f} acc {acc:.3f}", flush=True)
        scores, labels = predict(model, val_loader)
        aucs.append(roc_auc(scores, labels))
        print(f"fold {fold} auc {aucs[-1]:.4f}", flush=True)
    print(f"auc {np.mean(aucs):.4f} +- {np.std(aucs):.4f}")
    print(f"{steps} steps in {time.time() - start:.1f} s")


if __name__ == "__main__":
    main()
