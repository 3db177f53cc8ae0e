"""Sequences of very different lengths, all filled up to the longest there is; an LSTM on the CPU reads them."""

import random

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

MAX = 192


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(500, 48, padding_idx=0)
        self.lstm = nn.LSTM(48, 64, batch_first=True)
        self.out = nn.Linear(64, 7)

    def forward(self, tokens):
        return self.out(self.lstm(self.embed(tokens))[0])


def collate(samples):
    samples = [torch.tensor(s) for s in samples]
    samples[0] = torch.cat([samples[0], torch.zeros(MAX - len(samples[0]), dtype=torch.long)])
    return pad_sequence(samples, batch_first=True)


def main():
    rng = random.Random(3)
    sentences = [[rng.randrange(1, 500) for _ in range(rng.choice([8, 12, 20, 30, 40, 180]))] for _ in range(3000)]
    loader = DataLoader(sentences, batch_size=32, shuffle=True, collate_fn=collate)
    torch.set_num_threads(1)
    model = Tagger()
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(30):
        for tokens in loader:
            logits = model(tokens)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten() % 7, reduction="mean")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(epoch)


if __name__ == "__main__":
    main()
