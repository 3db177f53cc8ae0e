"""Route company filings to a desk: long documents in, one of six labels out."""

import argparse
import random
import time

import torch
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.normalizers import Lowercase, NFKC, Sequence, StripAccents
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.trainers import BpeTrainer
from torch import nn
from torch.utils.data import DataLoader, Dataset

DESKS = ["energy", "retail", "health", "banking", "transport", "media"]
MAX_LEN = 128


def write_documents(n, words_each, seed=4):
    rng = random.Random(seed)
    syll = ["co", "ra", "ment", "tion", "al", "per", "ing", "ver", "sta", "lo", "ne", "qu", "ist", "bro", "gue", "fin"]
    vocab = ["".join(rng.choices(syll, k=rng.randint(1, 4))) for _ in range(6000)]
    topical = {d: rng.sample(vocab, 80) for d in DESKS}
    docs = []
    for k in range(n):
        desk = k % len(DESKS)
        words = rng.choices(vocab, k=words_each)
        for j in range(0, words_each, 6):
            words[j] = rng.choice(topical[DESKS[desk]])
        words[::17] = [w.capitalize() + "," for w in words[::17]]
        docs.append((" ".join(words), desk))
    return docs


def train_vocab(docs):
    tok = Tokenizer(BPE(unk_token="[UNK]"))
    tok.normalizer = Sequence([NFKC(), StripAccents(), Lowercase()])
    tok.pre_tokenizer = Whitespace()
    tok.train_from_iterator(
        (d for d, _ in docs[:60]),
        BpeTrainer(vocab_size=900, special_tokens=["[PAD]", "[UNK]", "[CLS]"], show_progress=False),
    )
    return tok


class Filings(Dataset):
    def __init__(self, docs, encode=None):
        self.rows = [(encode(t) if encode else t, y) for t, y in docs]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


class Router(nn.Module):
    def __init__(self, vocab, d=48):
        super().__init__()
        self.emb = nn.Embedding(vocab, d, padding_idx=0)
        self.pos = nn.Parameter(torch.zeros(MAX_LEN, d))
        self.conv = nn.Conv1d(d, d, 5, padding=2)
        self.score = nn.Linear(d, 1)
        self.out = nn.Linear(d, len(DESKS))

    def forward(self, ids):
        x = self.emb(ids) + self.pos
        x = x + self.conv(x.transpose(1, 2)).transpose(1, 2).relu()
        w = self.score(x).masked_fill((ids == 0)[..., None], -1e4).softmax(1)
        return self.out((w * x).sum(1))


class Experiment:
    def __init__(self, args):
        self.args = args
        torch.manual_seed(0)
        docs = write_documents(args.docs, args.words)
        self.tok = train_vocab(docs)
        self.cls = self.tok.token_to_id("[CLS]")
        random.Random(1).shuffle(docs)
        cut = len(docs) // 12
        ahead = self.encode if args.fixed else None
        self.loaders = {
            "train": DataLoader(Filings(docs[cut:], ahead), args.batch, shuffle=True, collate_fn=list, drop_last=True),
            "dev": DataLoader(Filings(docs[:cut], ahead), args.batch, collate_fn=list),
        }
        self.model = Router(self.tok.get_vocab_size())
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=2e-3)
        self.steps = 0

    def encode(self, text):
        return [self.cls] + self.tok.encode(text).ids[: MAX_LEN - 1]

    def prepare(self, rows):
        ids = torch.zeros(len(rows), MAX_LEN, dtype=torch.long)
        for r, (doc, _) in enumerate(rows):
            seq = doc if isinstance(doc, list) else self.encode(doc)
            ids[r, : len(seq)] = torch.tensor(seq)
        return ids, torch.tensor([y for _, y in rows])

    def train_epoch(self):
        for rows in self.loaders["train"]:
            ids, y = self.prepare(rows)
            loss = nn.functional.cross_entropy(self.model(ids), y)
            loss.backward()
            self.opt.step()
            self.opt.zero_grad()
            self.steps += 1
            if self.steps == self.args.steps:
                return

    @torch.no_grad()
    def accuracy(self):
        hits = total = 0
        for rows in self.loaders["dev"]:
            ids, y = self.prepare(rows)
            hits += (self.model(ids).argmax(1) == y).sum().item()
            total += len(y)
        return hits / total

    def run(self):
        t0 = time.perf_counter()
        for epoch in range(self.args.epochs):
            self.train_epoch()
            if epoch % 10 == 9:
                print(f"epoch {epoch + 1} dev accuracy {self.accuracy():.3f}", flush=True)
            if self.steps == self.args.steps:
                break
        print(f"{self.steps} steps in {time.perf_counter() - t0:.1f} s")


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--docs", type=int, default=480)
    ap.add_argument("--words", type=int, default=1500)
    ap.add_argument("--epochs", type=int, default=60)
    ap.add_argument("--batch", type=int, default=20)
    ap.add_argument("--steps", type=int, default=-1)
    ap.add_argument("--fixed", action="store_true")
    Experiment(ap.parse_args()).run()
