"""Route support tickets to one of 12 queues with a small transformer over the beginning of the ticket."""

import argparse
import json
import os
import random
import time

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import PreTrainedTokenizerFast

QUEUES = 12
MAX_LEN = 48


def write_corpus(folder):
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "tickets.jsonl")
    if os.path.exists(path):
        return path
    rnd = random.Random(5)
    syll = ["ka", "lo", "mi", "ter", "an", "res", "pu", "do", "vi", "sel", "on", "gra", "ti", "er", "be", "quo"]
    words = ["".join(rnd.choice(syll) for _ in range(rnd.randint(2, 4))) for _ in range(5000)]
    with open(path + ".part", "w") as f:
        for _ in range(2400):
            q = rnd.randrange(QUEUES)
            body = rnd.choices(words[q * 200 : q * 200 + 200], k=40) + rnd.choices(words, k=rnd.randint(600, 1200))
            body = [w.capitalize() if rnd.random() < 0.1 else w for w in body]
            f.write(json.dumps({"subject": " ".join(body[:6]), "body": " ".join(body[6:]) + ".", "queue": q}) + "\n")
    os.replace(path + ".part", path)
    return path


def get_tokenizer(folder, texts):
    file = os.path.join(folder, "tokenizer.json")
    if not os.path.exists(file):
        tok = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tok.normalizer = normalizers.BertNormalizer()
        tok.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tok.train_from_iterator(
            texts[:300], trainers.WordPieceTrainer(vocab_size=1500, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
        )
        tok.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
        tok.save(file)
    return PreTrainedTokenizerFast(
        tokenizer_file=file, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )


class Tickets(Dataset):
    def __init__(self, rows, tokenizer):
        self.rows = rows
        self.tokenizer = tokenizer

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        row = self.rows[i]
        enc = self.tokenizer(
            row["subject"] + "\n" + row["body"],
            truncation=True,
            max_length=MAX_LEN,
            padding="max_length",
            return_tensors="pt",
        )
        return enc["input_ids"][0], row["queue"]


class EncodedTickets(Dataset):
    def __init__(self, rows, tokenizer):
        enc = tokenizer(
            [r["subject"] + "\n" + r["body"] for r in rows],
            truncation=True,
            max_length=MAX_LEN,
            padding="max_length",
            return_tensors="pt",
        )
        self.ids, self.queues = enc["input_ids"], [r["queue"] for r in rows]

    def __len__(self):
        return len(self.queues)

    def __getitem__(self, i):
        return self.ids[i], self.queues[i]


class Router(nn.Module):
    def __init__(self, vocab, dim=64):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.pos = nn.Parameter(torch.randn(1, MAX_LEN, dim) * 0.02)
        layer = nn.TransformerEncoderLayer(dim, 4, 128, dropout=0.1, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.out = nn.Linear(dim, QUEUES)

    def forward(self, ids):
        return self.out(self.enc(self.emb(ids) + self.pos).mean(1))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("data")
    ap.add_argument("--epochs", type=int, default=400)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--fixed", action="store_true")
    a = ap.parse_args()

    with open(write_corpus(a.data)) as f:
        rows = [json.loads(line) for line in f]
    tokenizer = get_tokenizer(a.data, [r["body"] for r in rows])
    train = (EncodedTickets if a.fixed else Tickets)(rows, tokenizer)
    loader = DataLoader(train, batch_size=a.batch, shuffle=True, num_workers=0)
    model = Router(len(tokenizer))
    opt = torch.optim.AdamW(model.parameters(), 3e-4)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, a.epochs * len(loader))
    for epoch in range(a.epochs):
        t, n, hit = time.time(), 0, 0
        model.train()
        for ids, queue in loader:
            logits = model(ids)
            loss = nn.functional.cross_entropy(logits, queue)
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            hit += (logits.argmax(1) == queue).sum()
            n += len(ids)
        print(f"epoch {epoch} acc {int(hit) / n:.3f} {n / (time.time() - t):.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
