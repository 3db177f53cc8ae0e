"""Routes customer complaints to departments."""

import argparse
import json
import math
import random
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

DATA = Path() / "data_complaints"
MAX_LEN = 128
DEPARTMENTS = 8


def make_corpus(n=7200):
    path = DATA / "complaints.jsonl"
    if path.exists():
        return path
    DATA.mkdir(exist_ok=True)
    rng = random.Random(2)
    syllables = [a + b for a in "bcdfghklmnprstvw" for b in ("a", "e", "i", "o", "u", "ar", "en", "ist")]
    words = ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(5000)]
    pieces = sorted(set(syllables) | {s + t for s in syllables[:60] for t in syllables[:40]} | set(words[:1000]))
    (DATA / "pieces.json").write_text(json.dumps({p: -1.0 - math.log1p(k) / 2 for k, p in enumerate(pieces)}))
    with open(path, "w") as f:
        for _ in range(n):
            text = " ".join(rng.choices(words, k=200))
            f.write(json.dumps({"text": text, "department": rng.randrange(DEPARTMENTS)}) + "\n")
    return path


class UnigramTokenizer:
    """Best segmentation under a unigram piece model."""

    def __init__(self, scores, longest=9):
        self.scores = scores
        self.ids = {p: k + 2 for k, p in enumerate(scores)}
        self.longest = longest

    def segment(self, word):
        best = [0.0] + [-1e9] * len(word)
        back = [0] * (len(word) + 1)
        for end in range(1, len(word) + 1):
            for begin in range(max(0, end - self.longest), end):
                piece = word[begin:end]
                score = best[begin] + self.scores.get(piece, -12.0 * len(piece))
                if score > best[end]:
                    best[end], back[end] = score, begin
        out, end = [], len(word)
        while end:
            out.append(word[back[end] : end])
            end = back[end]
        return out[::-1]

    def encode(self, text, max_len=MAX_LEN):
        ids = []
        for word in text.lower().split():
            ids.extend(self.ids.get(piece, 1) for piece in self.segment(word))
        return (ids + [0] * max_len)[:max_len]


class Complaints(Dataset):
    def __init__(self, path, tokenizer):
        self.rows = [json.loads(line) for line in open(path)]
        self.tokenizer = tokenizer

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        row = self.rows[i]
        return torch.tensor(self.tokenizer.encode(row["text"])), row["department"]


class TextCNN(nn.Module):
    def __init__(self, vocab, dim=128):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.conv1 = nn.Conv1d(dim, 128, 5, padding=2)
        self.conv2 = nn.Conv1d(128, 128, 3, padding=1)
        self.head = nn.Linear(128, DEPARTMENTS)

    def forward(self, ids):
        h = self.embed(ids).transpose(1, 2)
        h = torch.relu(self.conv2(torch.relu(self.conv1(h))))
        return self.head(h.amax(2))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=0)
    p.add_argument("--epochs", type=int, default=25)
    p.add_argument("--warmup", type=int, default=50)
    a = p.parse_args()
    path = make_corpus()
    tokenizer = UnigramTokenizer(json.loads((DATA / "pieces.json").read_text()))
    loader = DataLoader(Complaints(path, tokenizer), batch_size=32, shuffle=True)
    model = TextCNN(len(tokenizer.ids) + 2)
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / a.warmup))
    loss_fn = nn.CrossEntropyLoss()
    step, t0 = 0, None
    for epoch in range(a.epochs):
        running = 0.0
        for ids, department in loader:
            loss = loss_fn(model(ids), department)
            loss.backward()
            opt.step()
            opt.zero_grad()
            sched.step()
            running += loss.item()
            step += 1
            if step == 5:
                t0 = time.time()
            if a.steps and step == a.steps:
                print(f"seconds per step {(time.time() - t0) / (step - 5):.4f}")
                return
        print(f"epoch {epoch}: loss {running / len(loader):.4f}", flush=True)
        torch.save(model.state_dict(), DATA / "router.pt")


if __name__ == "__main__":
    main()
