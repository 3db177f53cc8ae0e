"""Card fraud with a small residual MLP; early stopping looks at the validation set several times per epoch."""

import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

FIXED = "--fixed" in sys.argv
EVAL_EVERY = 400 if FIXED else 20
BUDGET = 90


def transactions(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 64, generator=g)
    y = ((x[:, :8] * x[:, 8:16]).sum(1) > 6).float()
    return x, y


def batches(data, size, shuffle):
    x, y = data
    order = torch.randperm(len(x)) if shuffle else torch.arange(len(x))
    for rows in order.split(size):
        yield x[rows], y[rows]


class Residual(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.f = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.ReLU(), nn.Linear(2 * d, d))

    def forward(self, x):
        return x + self.f(x)


class Fraud(nn.Module):
    def __init__(self, d=160):
        super().__init__()
        self.inp = nn.Linear(64, d)
        self.body = nn.Sequential(*[Residual(d) for _ in range(3)])
        self.out = nn.Linear(d, 1)

    def forward(self, x):
        return self.out(self.body(self.inp(x))).squeeze(1)


@torch.no_grad()
def evaluate(model, data):
    model.eval()
    scores, truth = [], []
    for x, y in batches(data, 256, shuffle=False):
        scores.append(model(x))
        truth.append(y)
    scores, truth = torch.cat(scores), torch.cat(truth)
    order = scores.argsort(descending=True)
    hits = truth[order].cumsum(0)
    precision = hits / torch.arange(1, len(hits) + 1)
    model.train()
    return F.binary_cross_entropy_with_logits(scores, truth).item(), (precision * truth[order]).sum().item() / max(
        truth.sum().item(), 1
    )


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    train, val = transactions(30_000, 1), transactions(40_000, 2)
    model = Fraud()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    best, step, start = 0.0, 0, time.time()
    for epoch in range(1000):
        for x, y in batches(train, 256, shuffle=True):
            loss = F.binary_cross_entropy_with_logits(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            if step % EVAL_EVERY == 0:
                val_loss, ap = evaluate(model, val)
                best = max(best, ap)
                print(f"step {step} train {loss.item():.4f} val {val_loss:.4f} AP {ap:.3f} best {best:.3f}", flush=True)
            if time.time() - start > BUDGET:
                print(f"{step} steps, {(time.time() - start) / step * 1e3:.1f} ms per step in all")
                return


main()
