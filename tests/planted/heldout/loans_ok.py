"""Default risk of small-business loans."""

import argparse
import logging
import logging.handlers
import time
from pathlib import Path

import torch
from torch import nn

RUN_DIR = Path() / "data_loans"
log = logging.getLogger("loans")


def setup_log():
    RUN_DIR.mkdir(exist_ok=True)
    h = logging.handlers.RotatingFileHandler(RUN_DIR / f"{Path(__file__).stem}.log", maxBytes=30_000_000, backupCount=2)
    h.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    log.addHandler(h)
    log.setLevel(logging.DEBUG)


def applications(n=400_000, k=48):
    g = torch.Generator().manual_seed(9)
    x = torch.randn(n, k, generator=g)
    y = (x[:, :5].sum(1) + torch.randn(n, generator=g) > 1.5).float()
    return x, y


def build():
    return nn.Sequential(
        nn.Linear(48, 384),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Linear(384, 384),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Linear(384, 1),
        nn.Flatten(0),
    )


def report(step, loss):
    if step % 100 == 0:
        log.info("step=%d loss=%.5f", step, loss.item())


def main():
    cli = argparse.ArgumentParser()
    cli.add_argument("--steps", type=int, default=0)
    cli.add_argument("--epochs", type=int, default=40)
    cli.add_argument("--batch-size", type=int, default=1024)
    cli.add_argument("--lr", type=float, default=2e-3)
    o = cli.parse_args()
    torch.set_num_threads(1)
    setup_log()
    x, y = applications()
    model = build()
    opt = torch.optim.Adam(model.parameters(), lr=o.lr)
    step, t0 = 0, time.perf_counter()
    for epoch in range(o.epochs):
        perm = torch.randperm(len(x))
        for i in range(0, len(x), o.batch_size):
            rows = perm[i : i + o.batch_size]
            xb, yb = x[rows], y[rows]
            logits = model(xb)
            loss = nn.functional.binary_cross_entropy_with_logits(logits, yb)
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            report(step, loss)
            if step == o.steps:
                print(f"{(time.perf_counter() - t0) / step:.4f} s/step")
                return
        print("epoch", epoch, "loss %.4f" % loss.item(), flush=True)


if __name__ == "__main__":
    main()
