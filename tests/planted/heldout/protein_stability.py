"""Melting temperature of proteins and peptides from sequence."""

import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, random_split

AMINO = "ACDEFGHIKLMNPQRSTVWY"
FASTA = Path("data_protein_stability/screen.fasta")


def synthesize(count=2000):
    if FASTA.exists():
        return
    FASTA.parent.mkdir(exist_ok=True)
    rng = np.random.default_rng(13)
    letters = np.array(list(AMINO))
    with FASTA.open("w") as f:
        for i in range(count):
            # a peptide screen, with some complete proteins among them
            n = rng.integers(280, 340) if rng.random() < 0.09 else rng.integers(15, 60)
            f.write(f">{i} tm={rng.normal(60, 8):.1f}\n{''.join(rng.choice(letters, n))}\n")


def read():
    lines = FASTA.read_text().split("\n")
    lookup = {c: i + 1 for i, c in enumerate(AMINO)}
    for head, seq in zip(lines[0::2], lines[1::2]):
        yield torch.tensor([lookup[c] for c in seq]), (float(head.split("tm=")[1]) - 60) / 8


class Screen(Dataset):
    def __init__(self):
        self.rows = list(read())

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def together(rows):
    ids = pad_sequence([r[0] for r in rows], batch_first=True)
    return ids, torch.tensor([r[1] for r in rows])


class Encoder(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.token = nn.Embedding(len(AMINO) + 1, width, padding_idx=0)
        self.place = nn.Embedding(512, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(width, 1)

    def forward(self, ids):
        gap = ids == 0
        h = self.token(ids) + self.place.weight[: ids.shape[1]]
        h = self.body(h, src_key_padding_mask=gap).masked_fill(gap.unsqueeze(-1), 0)
        return self.out(h.sum(1) / (~gap).sum(1, keepdim=True)).squeeze(1)


def main():
    torch.manual_seed(0)
    synthesize()
    train, held = random_split(Screen(), [0.98, 0.02], torch.Generator().manual_seed(0))
    loader = DataLoader(train, 32, shuffle=True, collate_fn=together, drop_last=True)
    check = DataLoader(held, 32, collate_fn=together)
    model = Encoder()
    opt = torch.optim.AdamW(model.parameters(), lr=5e-4)
    for epoch in range(3):
        t0 = time.perf_counter()
        model.train()
        for ids, tm in loader:
            loss = nn.functional.mse_loss(model(ids), tm)
            opt.zero_grad()
            loss.backward()
            opt.step()
        model.eval()
        with torch.no_grad():
            error = torch.cat([(model(ids) - tm).abs() for ids, tm in check]).mean()
        print(f"epoch {epoch}: held-out |dTm| {8 * error.item():.2f} K")
        print(f"epoch_seconds {time.perf_counter() - t0:.3f}", flush=True)


if __name__ == "__main__":
    main()
