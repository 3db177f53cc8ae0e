"""The same fine-tuning with what plain PyTorch needs: tokenise once, copy once a step, read the loss once an epoch."""

import json
import sys
import time

import torch
from tokenizers import Tokenizer
from torch.utils.data import DataLoader, TensorDataset
from train import MAX_LENGTH, Model, parse, place


def tokenize_all(path, tokenizer_file):
    """Every text, once: a matrix of token ids and one of what is not padding."""
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    tokenizer.enable_truncation(MAX_LENGTH)
    tokenizer.enable_padding()
    encoded = tokenizer.encode_batch([json.loads(line)["text"] for line in path.read_text().splitlines()])
    ids = torch.tensor([text.ids for text in encoded])
    return TensorDataset(ids, torch.tensor([text.attention_mask for text in encoded]))


def forward(batch, model, device):
    ids, mask = (tensor.to(device, non_blocking=True) for tensor in batch)
    return model(ids, mask, ids)


def train_epoch(loader, model, optimizer, device):
    model.train()
    total = 0.0
    waited, step_began = 0.0, time.perf_counter()
    for batch in loader:
        waited += time.perf_counter() - step_began
        loss = forward(batch, model, device)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total = total + loss.detach()
        step_began = time.perf_counter()
    mean = (total / len(loader)).item()  # waits for the device, once an epoch
    if mean != mean:  # noqa: PLR0124 (not a number is the one value that differs from itself)
        raise ValueError(f"the loss is {mean}")
    return mean, waited


@torch.no_grad()
def validate(loader, model, device):
    model.eval()
    return torch.stack([forward(batch, model, device) for batch in loader]).mean().item()


def main():
    args = parse()
    torch.manual_seed(args.seed)
    args.out.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    tokenizer_file = args.data / "tokenizer.json"
    train_set = tokenize_all(args.data / "train.jsonl", tokenizer_file)
    train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True)
    val_loader = DataLoader(tokenize_all(args.data / "val.jsonl", tokenizer_file))
    print(f"tokenised once, in {time.perf_counter() - began:.2f} s")

    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    device, model = place(args, model, optimizer)
    waited = 0.0
    began = time.perf_counter()
    for epoch in range(args.epochs):
        epoch_began = time.perf_counter()
        loss, wait_s = train_epoch(train_loader, model, optimizer, device)
        waited += wait_s
        took = time.perf_counter() - epoch_began
        print(f"epoch {epoch}: loss {loss:.3f}, {len(train_loader) / took:.1f} it/s, {took:.1f} s", flush=True)
    busy_s, wall_s = getattr(device, "busy_s", None), time.perf_counter() - began
    print(f"validation loss {validate(val_loader, model, device):.3f}")
    torch.save({"epoch": args.epochs - 1, "model": model.state_dict()}, args.out / "checkpoint.pt")
    steps = args.epochs * len(train_loader)
    metrics = {
        "steps": steps,
        "wait_s": waited / steps,
        "step_s": wall_s / steps,
        "wait_share": waited / wall_s,
        "samples_per_s": args.batch_size * steps / wall_s,
        "wall_s": wall_s,
        "device_busy_s": busy_s,
        "device_step_s": None if busy_s is None else busy_s / steps,
        "device_idle_share": None if busy_s is None else 1 - busy_s / wall_s,
    }
    print(
        f"{steps / wall_s:.1f} it/s: {wall_s / steps * 1e3:.0f} ms a step, {waited / wall_s:.0%} of it waiting for data"
    )
    (args.out / "metrics.json").write_text(json.dumps(metrics, indent=2) + "\n")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("train: stopped")
