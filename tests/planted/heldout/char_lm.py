"""Character model on a generated text: embeddings, a causal convolution, a head."""

import argparse
import random
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stoker import sim

WORDS = "the a old new red small river stone house walks sees finds under over by and then again".split()


class Text(Dataset):
    def __init__(self, ids, length):
        self.ids, self.length = ids, length

    def __len__(self):
        return (len(self.ids) - 1) // self.length

    def __getitem__(self, i):
        at = i * self.length
        return self.ids[at : at + self.length], self.ids[at + 1 : at + self.length + 1]


class CharModel(nn.Module):
    def __init__(self, symbols, dim=8):
        super().__init__()
        self.embed = nn.Embedding(symbols, dim)
        self.mix = nn.Conv1d(dim, dim, 3)
        self.head = nn.Linear(dim, symbols)

    def forward(self, ids):
        x = self.embed(ids).transpose(1, 2)
        x = torch.relu(self.mix(F.pad(x, (2, 0)))).transpose(1, 2)
        return self.head(x)


def read_text(folder):
    path = folder / "text.txt"
    if not path.exists():
        rng = random.Random(0)
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(" ".join(rng.choice(WORDS) for _ in range(60_000)))
    text = path.read_text()
    symbols = sorted(set(text))
    number = {c: i for i, c in enumerate(symbols)}
    return torch.tensor([number[c] for c in text]), len(symbols)


def perplexity(model, loader, device):
    model.eval()
    losses = []
    with torch.no_grad():
        for x, y in loader:
            x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            losses.append(F.cross_entropy(model(x).flatten(0, 1), y.flatten()))
    model.train()
    return torch.stack(losses).mean().exp().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--fixed", action="store_true")
    args = parser.parse_args()

    ids, symbols = read_text(args.folder)
    cut = int(len(ids) * 0.97)
    train = DataLoader(Text(ids[:cut], args.length), args.batch, shuffle=True, drop_last=True)
    held_out = DataLoader(Text(ids[cut:], args.length), args.batch)
    model = CharModel(symbols)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    device = sim.Device(forward=22e-3, backward=40e-3, optimizer=4e-3)
    model = device.place(model, optimizer)

    for epoch in range(args.epochs):
        began = time.perf_counter()
        for step, (x, y) in enumerate(train):
            x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 25 == 0:
                print(f"epoch {epoch} {step}/{len(train)} loss {loss.item():.3f}", flush=True)
        value = perplexity(model, held_out, device)
        torch.save({"model": model.state_dict(), "epoch": epoch}, args.folder / "last.pt")
        print(f"epoch {epoch}: perplexity {value:.2f}, {time.perf_counter() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main()
