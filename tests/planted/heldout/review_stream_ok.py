#!/usr/bin/env python
# Sentiment classifier trained from a gzip stream of reviews, one pass.
import gzip, json, os, time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
from dataclasses import dataclass
from pathlib import Path
import numpy as np
import torch
from tokenizers import Tokenizer
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

ROOT = Path("data") / "review_stream"


@dataclass
class Config:
    steps: int = 540
    bs: int = 32
    seq: int = 96
    dim: int = 64
    layers: int = 1
    heads: int = 4
    lr: float = 5e-4
    workers: int = 2


def prepare():
    if (ROOT / "done").exists():
        return
    ROOT.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(3)
    syl = [a + b + c for a in "bcdfglmnprstv" for b in "aeiou" for c in ("", "n", "r", "st", "l")]
    words = ["".join(rng.choice(syl, rng.integers(2, 5))) for _ in range(12000)]
    p = 1 / np.arange(1, 12001) ** 0.8
    p /= p.sum()
    for s in range(4):
        with gzip.open(ROOT / f"part{s}.jsonl.gz", "wt", compresslevel=1) as f:
            for d in range(4400):
                ws = rng.choice(12000, 110, p=p)
                f.write(json.dumps({"text": " ".join(words[i] for i in ws), "label": int(ws[:40].sum() % 2)}) + "\n")
    from tokenizers import models, trainers, pre_tokenizers

    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.Whitespace()
    t.train_from_iterator([" ".join(words)], trainers.BpeTrainer(vocab_size=4000, special_tokens=["[PAD]", "[UNK]"]))
    t.save(str(ROOT / "tok.json"))
    (ROOT / "done").touch()


class Lexicon:
    """BPE with the merges from tok.json"""

    def __init__(self, path, seq):
        self.tok = Tokenizer.from_file(str(path))
        self.tok.enable_truncation(seq)
        self.tok.enable_padding(length=seq, pad_id=0)

    def __call__(self, texts):
        return torch.tensor(np.array([e.ids for e in self.tok.encode_batch(list(texts))]))


class Reviews(IterableDataset):
    def __iter__(self):
        files = sorted(ROOT.glob("part*.jsonl.gz"))
        info = get_worker_info()
        if info:
            files = files[info.id :: info.num_workers]
        for f in files:
            with gzip.open(f, "rt") as fh:
                for line in fh:
                    r = json.loads(line)
                    yield r["text"], r["label"]


class Classifier(nn.Module):
    def __init__(self, c, n):
        super().__init__()
        self.emb = nn.Embedding(n, c.dim, padding_idx=0)
        self.pos = nn.Parameter(torch.zeros(c.seq, c.dim))
        lay = nn.TransformerEncoderLayer(c.dim, c.heads, 2 * c.dim, 0.0, batch_first=True)
        self.enc = nn.TransformerEncoder(lay, c.layers)
        self.out = nn.Linear(c.dim, 2)

    def forward(self, x):
        return self.out(self.enc(self.emb(x) + self.pos).mean(1))


def run(c):
    torch.set_num_threads(1)
    torch.manual_seed(1)
    prepare()
    lex = Lexicon(ROOT / "tok.json", c.seq)

    def make_batch(rows):
        texts, labels = zip(*rows)
        return lex(texts), torch.tensor(labels)

    dl = DataLoader(Reviews(), c.bs, num_workers=c.workers, collate_fn=make_batch, prefetch_factor=4)
    model = Classifier(c, 4000)
    opt = torch.optim.Adam(model.parameters(), c.lr)
    sched = torch.optim.lr_scheduler.LinearLR(opt, 1.0, 0.1, c.steps)
    lossf = nn.CrossEntropyLoss()
    it = iter(dl)
    start = time.time()
    for i in range(c.steps):
        x, y = next(it)
        loss = lossf(model(x), y)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        if i == 4:
            start = time.time()
        if (i + 1) % 100 == 0:
            print(f"{i + 1}/{c.steps} loss={loss.item():.4f}")
    el = time.time() - start
    print(f"done: {(c.steps - 5) / el:.2f} it/s, {el / (c.steps - 5) * 1e3:.1f} ms/step")


if __name__ == "__main__":
    import argparse

    ap = argparse.ArgumentParser()
    for k, v in Config().__dict__.items():
        ap.add_argument("--" + k, type=type(v), default=v)
    run(Config(**vars(ap.parse_args())))
