"""Train a move predictor on fixed-size records in memory-mapped .npy shards."""

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

WARMUP_STEPS = 10


class Parser(argparse.ArgumentParser):
    def error(self, message):
        self.exit(2, f"train: {message}. See: train.py --help\n")


class FileManager:
    """All shards as one long array of records."""

    def __init__(self, paths):
        self.memmaps = [np.load(path, mmap_mode="r") for path in paths]
        self.cum_lengths = np.cumsum([0, *(len(memmap) for memmap in self.memmaps)])

    def __len__(self):
        return int(self.cum_lengths[-1])

    def get_item(self, idx):
        file_idx = np.searchsorted(self.cum_lengths, idx, side="right") - 1
        relative_idx = idx - self.cum_lengths[file_idx]
        return self.memmaps[file_idx][relative_idx]


class RecordDataset(Dataset):
    def __init__(self, files, indices):
        self.files = files
        self.indices = indices

    def __len__(self):
        return len(self.indices)

    def __getitem__(self, idx):
        record = self.files.get_item(self.indices[idx])
        move = torch.from_numpy(record["moveLabel"].astype(np.float32))
        if not np.isclose(move.sum().item(), 1):
            raise ValueError(f"record {record['id']}: the move label sums to {move.sum().item()}, expected 1")
        return {
            "id": int(record["id"]),
            "board": torch.from_numpy(record["boardIdPositions"].astype(np.int64)),
            "hand": torch.from_numpy(record["piecesInHand"].astype(np.float32)),
            "move": move,
            "legal": torch.ones_like(move),  # preprocessed records do not carry the mask of legal moves
            "value": torch.tensor(record["resultValue"], dtype=torch.float32),
        }


class Model(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.pieces = nn.Embedding(32, 4)
        self.body = nn.Sequential(nn.Linear(81 * 4 + 14, width), nn.ReLU())
        self.policy = nn.Linear(width, 1496)
        self.value = nn.Linear(width, 1)

    def forward(self, board, hand):
        x = self.body(torch.cat([self.pieces(board).flatten(1), hand], dim=1))
        return self.policy(x), self.value(x).squeeze(1)


class PolicyValueLoss(nn.Module):
    def forward(self, policy, value, move, result):
        policy_loss = nn.functional.cross_entropy(policy, move)
        value_loss = nn.functional.binary_cross_entropy_with_logits(value, result)
        return policy_loss + value_loss, policy_loss, value_loss


def place(args, model, criterion, optimizer):
    """Put the model on the device; the simulated one takes the note's times for a batch of 750 on an A100."""
    if args.device != "sim":
        return torch.device(args.device), model.to(args.device), criterion
    from stoker import sim

    device = sim.Device(
        forward=sim.linear(0, 7.9e-3 / 750),
        backward=sim.linear(0, 8.2e-3 / 750),
        optimizer=2.3e-3,
        memory_bytes=80 << 30,
        fixed_bytes=1 << 30,
        sample_bytes=8 << 20,
    )
    # 0.8 ms of loss, and the 4.6 ms that the note counts as computation (23.8) without listing them (19.2).
    return device, device.place(model, optimizer), device.place(criterion, forward=sim.linear(0, 5.4e-3 / 750))


def to_device(batch, device):
    return {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}


def train_epoch(loader, model, criterion, optimizer, device, epoch, args, timings):
    model.train()
    step_began = time.perf_counter()
    for step, batch in enumerate(loader):
        waited = time.perf_counter() - step_began
        batch = to_device(batch, device)
        policy, value = model(batch["board"], batch["hand"])
        loss, policy_loss, value_loss = criterion(policy, value, batch["move"], batch["value"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        stats = {"loss": loss.item(), "policy": policy_loss.item(), "value": value_loss.item()}
        now = time.perf_counter()
        timings.append((epoch, step, waited, now - step_began, getattr(device, "busy_s", 0.0)))
        if step % args.log_every == 0:
            shown = ", ".join(f"{name} {number:.3f}" for name, number in stats.items())
            print(f"epoch {epoch} step {step}/{len(loader)}: {shown}, {1 / (now - step_began):.1f} it/s", flush=True)
        if args.steps and len(timings) >= args.steps:
            break
        step_began = time.perf_counter()


@torch.no_grad()
def validate(loader, model, criterion, device, steps):
    model.eval()
    losses = []
    for step, batch in enumerate(loader):
        if step == steps:
            break
        batch = to_device(batch, device)
        policy, value = model(batch["board"], batch["hand"])
        losses.append(criterion(policy, value, batch["move"], batch["value"])[0].item())
    return float(np.mean(losses))


def report(timings, device, wall_s, args):
    """Step times without and with the start, because they are not the same thing."""
    steady = [row for row in timings if row[1] >= WARMUP_STEPS] or timings
    wait_s = float(np.mean([row[2] for row in steady]))
    step_s = float(np.mean([row[3] for row in steady]))
    metrics = {
        "steps": len(timings),
        "wait_s": wait_s,
        "step_s": step_s,
        "wait_share": wait_s / step_s,
        "mean_step_s": float(np.mean([row[3] for row in timings])),
        "first_batch_s": [row[2] for row in timings if row[1] == 0],
        "samples_per_s": args.batch_size / step_s,
        "wall_s": wall_s,
        "device_busy_s": getattr(device, "busy_s", None),
        "device_step_s": float(np.median(np.diff([row[4] for row in timings]))) if len(timings) > 1 else None,
    }
    print(
        f"{1 / step_s:.1f} it/s, {metrics['samples_per_s']:.0f} samples/s: {step_s * 1e3:.1f} ms a step, of which "
        f"{wait_s * 1e3:.1f} ms ({wait_s / step_s:.0%}) waiting for data; {metrics['mean_step_s'] * 1e3:.1f} ms a step "
        "with the start of each epoch mixed in"
    )
    (args.out / "metrics.json").write_text(json.dumps(metrics, indent=2) + "\n")


def parse():
    parser = Parser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder with shard-*.npy")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="where checkpoint and metrics go")
    parser.add_argument("--device", choices=["sim", "cpu", "cuda"], default="sim")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=0, help="stop after so many steps in all (0: never)")
    parser.add_argument("--val-steps", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=750)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--prefetch", type=int, default=1)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log-every", type=int, default=20)
    args = parser.parse_args()
    for name, least in {
        "epochs": 1,
        "steps": 0,
        "val_steps": 0,
        "batch_size": 1,
        "workers": 0,
        "prefetch": 1,
        "log_every": 1,
    }.items():
        if getattr(args, name) < least:
            parser.error(f"--{name.replace('_', '-')} is {getattr(args, name)}; expected {least} or more")
    args.shards = sorted(args.data.glob("shard-*.npy"))
    if not args.shards:
        parser.error(f"{args.data} holds no shard-*.npy; make them with: make_data.py --out {args.data}")
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device is cuda and this machine has none; expected sim or cpu")
    return args


def main():
    args = parse()
    torch.manual_seed(args.seed)
    files = FileManager(args.shards)
    order = np.random.default_rng(args.seed).permutation(len(files)).tolist()
    split = int(len(order) * 0.8)
    options = {"num_workers": args.workers, "prefetch_factor": args.prefetch if args.workers else None}
    train_loader = DataLoader(RecordDataset(files, order[:split]), args.batch_size, shuffle=True, **options)
    val_loader = DataLoader(RecordDataset(files, order[split:]), args.batch_size, **options)

    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    device, model, criterion = place(args, model, PolicyValueLoss(), optimizer)
    args.out.mkdir(parents=True, exist_ok=True)
    timings = []
    began = time.perf_counter()
    for epoch in range(args.epochs):
        train_epoch(train_loader, model, criterion, optimizer, device, epoch, args, timings)
        if args.val_steps:
            print(
                f"epoch {epoch}: validation loss {validate(val_loader, model, criterion, device, args.val_steps):.3f}"
            )
        torch.save({"epoch": epoch, "model": model.state_dict()}, args.out / "checkpoint.pt")
        if args.steps and len(timings) >= args.steps:
            break
    report(timings, device, time.perf_counter() - began, args)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("train: stopped")
