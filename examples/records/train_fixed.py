"""The same training, fed by stoker.Loader: a batch is one gather, and the loss is read every few steps only."""

import json
import sys
import time

import numpy as np
import torch
from train import WARMUP_STEPS, Model, PolicyValueLoss, parse, place

import stoker

FIELDS = ["boardIdPositions", "piecesInHand", "moveLabel", "resultValue"]


def forward(batch, model, criterion, device):
    """Records travel as they are stored, small; they are widened on the device."""
    board, hand, move, value = (batch[name].to(device, non_blocking=True) for name in FIELDS)
    return criterion(*model(board.long(), hand.float()), move.float(), value.float())


def train_epoch(loader, model, criterion, optimizer, device, epoch, args, timings):
    model.train()
    step_began = time.perf_counter()
    for step, batch in enumerate(loader):
        waited = time.perf_counter() - step_began
        loss, policy_loss, value_loss = forward(batch, model, criterion, device)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % args.log_every == 0:
            parts = f"loss {loss.item():.3f}, policy {policy_loss.item():.3f}, value {value_loss.item():.3f}"
            print(f"epoch {epoch} step {step}/{len(loader)}: {parts}", flush=True)
        timings.append((epoch, step, waited, time.perf_counter(), getattr(device, "busy_s", 0.0)))
        if args.steps and len(timings) >= args.steps:
            break
        step_began = time.perf_counter()
    synchronize(device)
    timings[-1] = (*timings[-1][:3], time.perf_counter(), timings[-1][4])


def synchronize(device):
    if getattr(device, "type", None) == "sim":
        device.synchronize()
    elif str(device) == "cuda":
        torch.cuda.synchronize()


@torch.no_grad()
def validate(loader, model, criterion, device, steps):
    model.eval()
    losses = []
    for step, batch in enumerate(loader):
        if step == steps:
            break
        losses.append(forward(batch, model, criterion, device)[0])
    return torch.stack(losses).mean().item()


def report(timings, device, wall_s, args):
    """Steps are queued ahead of the device, so a step's time is that of many steps, divided."""
    steady = [[row for row in timings if row[0] == epoch] for epoch in range(args.epochs)]
    steady = [rows[WARMUP_STEPS:] if len(rows) > WARMUP_STEPS + 1 else rows for rows in steady if len(rows) > 1]
    step_s = float(sum(rows[-1][3] - rows[0][3] for rows in steady) / sum(len(rows) - 1 for rows in steady))
    wait_s = float(np.mean([row[2] for rows in steady for row in rows[1:]]))
    metrics = {
        "steps": len(timings),
        "wait_s": wait_s,
        "step_s": step_s,
        "wait_share": wait_s / step_s,
        "first_batch_s": [row[2] for row in timings if row[1] == 0],
        "samples_per_s": args.batch_size / step_s,
        "wall_s": wall_s,
        "device_busy_s": getattr(device, "busy_s", None),
        "device_step_s": float(np.median(np.diff([row[4] for row in timings]))) if len(timings) > 1 else None,
    }
    print(
        f"{1 / step_s:.1f} it/s, {metrics['samples_per_s']:.0f} samples/s: {step_s * 1e3:.1f} ms a step, of which "
        f"{wait_s * 1e3:.1f} ms ({wait_s / step_s:.0%}) waiting for data"
    )
    (args.out / "metrics.json").write_text(json.dumps(metrics, indent=2) + "\n")


def main():
    args = parse()
    torch.manual_seed(args.seed)
    split = len(args.shards) * 4 // 5  # by shard: no list of every record is needed
    train_data = stoker.open(args.shards[:split], columns=FIELDS)
    val_data = stoker.open(args.shards[split:], columns=FIELDS)
    train_loader = stoker.Loader(train_data, batch_size=args.batch_size, shuffle=True, seed=args.seed)
    val_loader = stoker.Loader(val_data, batch_size=args.batch_size)

    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    device, model, criterion = place(args, model, PolicyValueLoss(), optimizer)
    args.out.mkdir(parents=True, exist_ok=True)
    timings = []
    began = time.perf_counter()
    for epoch in range(args.epochs):
        train_epoch(train_loader, model, criterion, optimizer, device, epoch, args, timings)
        if args.val_steps:
            loss = validate(val_loader, model, criterion, device, args.val_steps)
            print(f"epoch {epoch}: validation loss {loss:.3f}")
        saved = {"epoch": epoch, "model": model.state_dict(), "loader": train_loader.state_dict()}
        torch.save(saved, args.out / "checkpoint.pt")
        if args.steps and len(timings) >= args.steps:
            break
    report(timings, device, time.perf_counter() - began, args)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("train: stopped")
