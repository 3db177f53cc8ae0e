"""Fine-tune a language model on a handful of short texts."""

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

try:
    from tokenizers import Tokenizer
except ImportError:
    sys.exit("train: tokenizers is not installed; run: pip install 'stoker[text]'")

MAX_LENGTH = 256
WARMUP_STEPS = 2


class Parser(argparse.ArgumentParser):
    def error(self, message):
        self.exit(2, f"train: {message}. See: train.py --help\n")


def tokenize(text, tokenizer_file):
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    tokenizer.enable_truncation(MAX_LENGTH)
    return tokenizer.encode(text)


class TextDataset(Dataset):
    def __init__(self, path, tokenizer_file):
        self.texts = [json.loads(line)["text"] for line in path.read_text().splitlines()]
        self.tokenizer_file = tokenizer_file

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, idx):
        encoded = tokenize(self.texts[idx], self.tokenizer_file)
        return {"input_ids": encoded.ids, "attention_mask": encoded.attention_mask, "labels": encoded.ids}


class Model(nn.Module):
    """A tiny stand-in for a language model: predicts the next token, in a small vocabulary of buckets."""

    def __init__(self, buckets=256, width=16):
        super().__init__()
        self.buckets = buckets
        self.tokens = nn.Embedding(buckets, width)
        self.head = nn.Linear(width, buckets)

    def forward(self, input_ids, attention_mask, labels):
        logits = self.head(self.tokens(input_ids[:, :-1] % self.buckets)).transpose(1, 2)
        losses = nn.functional.cross_entropy(logits, labels[:, 1:] % self.buckets, reduction="none")
        kept = attention_mask[:, 1:]
        return (losses * kept).sum() / kept.sum()


def place(args, model, optimizer):
    """Put the model on the device; the simulated one takes the note's 50 ms for one text on an RTX 4090."""
    if args.device != "sim":
        return torch.device(args.device), model.to(args.device)
    from stoker import sim

    device = sim.Device(
        forward=sim.linear(0.013, 0.002),
        backward=sim.linear(0.026, 0.004),
        optimizer=0.005,
        memory_bytes=24 << 30,
        fixed_bytes=12 << 30,
        sample_bytes=1 << 30,
    )
    return device, device.place(model, optimizer)


def to_device(batch, device):
    """The loader turns a list of numbers into a list of one-element tensors; put them together on the device."""
    return {name: torch.stack([token.to(device) for token in tokens], dim=1) for name, tokens in batch.items()}


def train_epoch(loader, model, optimizer, device, epoch, timings):
    model.train()
    total = 0.0
    step_began = time.perf_counter()
    for step, batch in enumerate(loader):
        loaded = time.perf_counter()
        batch = to_device(batch, device)
        copied = time.perf_counter()
        loss = model(**batch)
        if torch.isnan(loss):
            raise ValueError(f"the loss is {loss.item()} in epoch {epoch}, step {step}")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
        ended = time.perf_counter()
        busy_s = getattr(device, "busy_s", 0.0)
        timings.append((epoch, step, loaded - step_began, copied - loaded, ended - copied, busy_s))
        step_began = time.perf_counter()
    return total / len(loader)


@torch.no_grad()
def validate(loader, model, device):
    model.eval()
    return float(np.mean([model(**to_device(batch, device)).item() for batch in loader]))


def report(timings, busy_s, wall_s, args):
    steady = [row for row in timings if row[0] > 0 or row[1] >= WARMUP_STEPS] or timings
    wait_s, copy_s, compute_s = (float(np.mean([row[part] for row in steady])) for part in (2, 3, 4))
    step_s = wait_s + copy_s + compute_s
    metrics = {
        "steps": len(timings),
        "wait_s": wait_s,
        "copy_s": copy_s,
        "compute_s": compute_s,
        "step_s": step_s,
        "wait_share": wait_s / step_s,
        "samples_per_s": args.batch_size / step_s,
        "wall_s": wall_s,
        "device_busy_s": busy_s,
        "device_step_s": float(np.median(np.diff([row[5] for row in timings]))) if len(timings) > 1 else None,
        "device_idle_share": None if busy_s is None else 1 - busy_s / wall_s,
    }
    print(
        f"{1 / step_s:.1f} it/s: {step_s * 1e3:.0f} ms a step, of which {wait_s * 1e3:.0f} ms ({wait_s / step_s:.0%}) "
        f"tokenising, {copy_s * 1e3:.0f} ms copying to the device, {compute_s * 1e3:.0f} ms computing"
    )
    (args.out / "metrics.json").write_text(json.dumps(metrics, indent=2) + "\n")


def parse():
    parser = Parser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder with train.jsonl, tokenizer.json")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="where checkpoint and metrics go")
    parser.add_argument("--device", choices=["sim", "cpu", "cuda"], default="sim")
    parser.add_argument("--epochs", type=int, default=3, help="(the note: 200)")
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--prefetch", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    for name, low in {"epochs": 1, "batch_size": 1, "workers": 0, "prefetch": 1}.items():
        if getattr(args, name) < low:
            parser.error(f"--{name.replace('_', '-')} is {getattr(args, name)}; expected {low} or more")
    if args.batch_size > 1:
        parser.error(f"--batch-size is {args.batch_size}; the texts differ in length and are not padded, so expected 1")
    if not (args.data / "tokenizer.json").exists():
        parser.error(f"{args.data} holds no tokenizer.json; make it with: make_data.py --out {args.data}")
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device is cuda and this machine has none; expected sim or cpu")
    return args


def main():
    args = parse()
    torch.manual_seed(args.seed)
    args.out.mkdir(parents=True, exist_ok=True)
    options = {"num_workers": args.workers, "prefetch_factor": args.prefetch if args.workers else None}
    tokenizer_file = args.data / "tokenizer.json"
    train_set = TextDataset(args.data / "train.jsonl", tokenizer_file)
    train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True, **options)
    val_loader = DataLoader(TextDataset(args.data / "val.jsonl", tokenizer_file), **options)

    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    device, model = place(args, model, optimizer)
    timings = []
    began = time.perf_counter()
    for epoch in range(args.epochs):
        epoch_began = time.perf_counter()
        loss = train_epoch(train_loader, model, optimizer, device, epoch, timings)
        took = time.perf_counter() - epoch_began
        print(f"epoch {epoch}: loss {loss:.3f}, {len(train_loader) / took:.1f} it/s, {took:.1f} s", flush=True)
    busy_s, wall_s = getattr(device, "busy_s", None), time.perf_counter() - began
    print(f"validation loss {validate(val_loader, model, device):.3f}")
    torch.save({"epoch": args.epochs - 1, "model": model.state_dict()}, args.out / "checkpoint.pt")
    report(timings, busy_s, wall_s, args)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("train: stopped")
