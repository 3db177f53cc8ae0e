"""A small language model that takes random windows of a mapped file of ids by itself: nothing to find."""

import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn


def window(ids, batch, length):
    starts = torch.randint(len(ids) - length - 1, (batch,))
    x = torch.stack([torch.from_numpy(ids[i : i + length].astype(np.int64)) for i in starts.tolist()])
    y = torch.stack([torch.from_numpy(ids[i + 1 : i + 1 + length].astype(np.int64)) for i in starts.tolist()])
    return x, y


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(512, 96)
        self.body = nn.TransformerEncoder(nn.TransformerEncoderLayer(96, 4, 192, batch_first=True), 2)
        self.head = nn.Linear(96, 512)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.head(self.body(self.embed(x), mask=mask, is_causal=True))


def main(path):
    if not path.exists():
        np.random.default_rng(0).integers(0, 512, 2_000_000).astype(np.uint16).tofile(path)
    ids = np.memmap(path, np.uint16, "r")
    model = Small()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for step in range(400):
        x, y = window(ids, 8, 128)
        loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        if step % 50 == 0:
            print(step, loss.item())


if __name__ == "__main__":
    main(Path(sys.argv[1]) / "ids.bin")
