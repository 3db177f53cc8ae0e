"""Sequence tagger: BiLSTM with a linear-chain CRF on top, synthetic named-entity data kept in a pickle."""

import argparse
import os
import pickle
import random
import time

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

VOCAB, TAGS, LENGTH = 2000, 7, 16


def corpus(folder):
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "sentences.pkl")
    if not os.path.exists(path):
        rnd = random.Random(0)
        out = []
        for _ in range(384):
            words = [rnd.randrange(VOCAB) for _ in range(LENGTH)]
            tags = [w % TAGS if w % 3 else (words[k - 1] % TAGS) for k, w in enumerate(words)]
            out.append((words, tags))
        with open(path, "wb") as f:
            pickle.dump(out, f)
    with open(path, "rb") as f:
        rows = pickle.load(f)
    return TensorDataset(torch.tensor([r[0] for r in rows]), torch.tensor([r[1] for r in rows]))


class Tagger(nn.Module):
    def __init__(self, dim=64, hidden=128):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, dim)
        self.lstm = nn.LSTM(dim, hidden, bidirectional=True, batch_first=True)
        self.out = nn.Linear(2 * hidden, TAGS)
        self.trans = nn.Parameter(torch.randn(TAGS, TAGS) * 0.1)

    def emissions(self, words):
        return self.out(self.lstm(self.emb(words))[0])

    def log_partition(self, feats):
        """Forward algorithm for one sentence."""
        alpha = feats[0]
        for feat in feats[1:]:
            nxt = []
            for tag in range(TAGS):
                nxt.append(torch.logsumexp(alpha + self.trans[tag] + feat[tag], 0))
            alpha = torch.stack(nxt)
        return torch.logsumexp(alpha, 0)

    def gold_score(self, feats, tags):
        score = feats[0, tags[0]]
        for k in range(1, len(tags)):
            score = score + self.trans[tags[k], tags[k - 1]] + feats[k, tags[k]]
        return score

    def loss(self, words, tags):
        feats = self.emissions(words)
        total = 0
        for f, t in zip(feats, tags):
            total = total + self.log_partition(f) - self.gold_score(f, t)
        return total / len(words)


class TaggerB(Tagger):
    def loss(self, words, tags):
        feats = self.emissions(words)
        alpha = feats[:, 0]
        for k in range(1, LENGTH):
            alpha = torch.logsumexp(alpha[:, None, :] + self.trans[None], 2) + feats[:, k]
        gold = feats.gather(2, tags[..., None]).sum((1, 2)) + self.trans[tags[:, 1:], tags[:, :-1]].sum(1)
        return (torch.logsumexp(alpha, 1) - gold).mean()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("data")
    ap.add_argument("--epochs", type=int, default=250)
    ap.add_argument("--batch", type=int, default=12)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(0)
    loader = DataLoader(corpus(args.data), args.batch, shuffle=True)
    model = (TaggerB if args.fixed else Tagger)()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(args.epochs):
        t, n = time.time(), 0
        for words, tags in loader:
            model.zero_grad()
            loss = model.loss(words, tags)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            opt.step()
            n += len(words)
        print(f"epoch {epoch} nll {loss.item():.3f} {n / (time.time() - t):.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
