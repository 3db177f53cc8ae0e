"""Sentences of every length, all padded to 256 for a small transformer."""

import torch
from torch import nn
from torch.utils.data import DataLoader

LONGEST = 256


def pad(batch):
    ids = torch.zeros(len(batch), LONGEST, dtype=torch.long)
    for row, sentence in zip(ids, batch, strict=True):
        row[: len(sentence)] = sentence
    return ids


def main():
    torch.manual_seed(0)
    lengths = torch.randint(10, 60, (1500,)).tolist()
    sentences = [torch.randint(1, 1000, (n,)) for n in lengths]
    embed = nn.Embedding(1000, 64, padding_idx=0)
    body = nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), 2)
    head = nn.Linear(64, 1000)
    opt = torch.optim.Adam([*embed.parameters(), *body.parameters(), *head.parameters()], lr=1e-3)
    for _ in range(4):
        for ids in DataLoader(sentences, 8, shuffle=True, collate_fn=pad):
            out = head(body(embed(ids), src_key_padding_mask=ids == 0))
            loss = nn.functional.cross_entropy(out[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0)
            opt.zero_grad()
            loss.backward()
            opt.step()


main()
