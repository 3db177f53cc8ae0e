#!/usr/bin/env python
"""Predict the retention time of peptides with a small encoder."""

import argparse
import math
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

ALPHABET = "ACDEFGHIKLMNPQRSTVWY"
LONGEST = 192


def invent_peptides(count: int, seed: int) -> tuple[list[str], np.ndarray]:
    rng = np.random.default_rng(seed)
    lengths = np.clip(rng.lognormal(3.7, 0.5, count).astype(int), 12, LONGEST)
    letters = np.array(list(ALPHABET))
    weight = rng.normal(0, 1, len(ALPHABET))
    strings, times = [], np.empty(count, np.float32)
    for i, n in enumerate(lengths):
        code = rng.integers(0, len(ALPHABET), n)
        strings.append("".join(letters[code]))
        times[i] = weight[code].sum() / math.sqrt(n) + 0.1 * rng.normal()
    return strings, times


class Peptides(Dataset):
    def __init__(self, strings, times):
        index = {letter: k + 1 for k, letter in enumerate(ALPHABET)}
        self.codes = [torch.tensor([index[c] for c in s]) for s in strings]
        self.times = torch.from_numpy(times)

    def __len__(self):
        return len(self.codes)

    def __getitem__(self, i):
        return self.codes[i], self.times[i]


class ByLength(Sampler):
    """Batches of neighbours in length, in random order; ties are broken anew each time."""

    def __init__(self, lengths, batch):
        self.lengths = torch.tensor(lengths, dtype=torch.float32)
        self.batch = batch

    def __len__(self):
        return math.ceil(len(self.lengths) / self.batch)

    def __iter__(self):
        order = torch.argsort(self.lengths + torch.rand(len(self.lengths)))
        groups = list(order.split(self.batch))
        for g in torch.randperm(len(groups)).tolist():
            yield groups[g].tolist()


def stack(samples):
    codes = torch.zeros(len(samples), max(len(c) for c, _ in samples), dtype=torch.long)
    for row, (code, _) in enumerate(samples):
        codes[row, : len(code)] = code
    return codes, torch.stack([t for _, t in samples])


class Retention(nn.Module):
    def __init__(self, width=96, heads=4, layers=2):
        super().__init__()
        self.letters = nn.Embedding(len(ALPHABET) + 1, width)
        self.places = nn.Parameter(0.02 * torch.randn(LONGEST, width))
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(width, 1)

    def forward(self, codes):
        blank = codes == 0
        h = self.letters(codes) + self.places[: codes.shape[1]]
        h = self.encoder(h, src_key_padding_mask=blank)
        keep = (~blank).unsqueeze(2).to(h.dtype)
        return self.out((h * keep).sum(1) / keep.sum(1).sqrt()).squeeze(1)


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("-n", "--peptides", type=int, default=3200)
    ap.add_argument("-e", "--epochs", type=int, default=14)
    ap.add_argument("-b", "--batch", type=int, default=32)
    args = ap.parse_args()
    torch.manual_seed(1)

    data = Peptides(*invent_peptides(args.peptides, seed=8))
    order = ByLength([len(c) for c in data.codes], args.batch)
    batches = DataLoader(data, batch_sampler=order, collate_fn=stack)
    model = Retention()
    optimiser = torch.optim.AdamW(model.parameters(), lr=5e-4)

    seen, began = 0, time.time()
    for epoch in range(args.epochs):
        for step, (codes, times) in enumerate(batches):
            loss = nn.functional.mse_loss(model(codes), times)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            seen += len(times)
            if step % 50 == 0:
                print(
                    f"{epoch}:{step:03d} mse {loss.detach():.4f}, {seen / (time.time() - began):.0f} peptides/s",
                    flush=True,
                )


if __name__ == "__main__":
    main()
