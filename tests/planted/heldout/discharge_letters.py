"""Triage of discharge letters: urgency (5 classes) from the first page of the letter."""

import json
import logging
import random
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
log = logging.getLogger("triage")

HOME = Path("data_clinical_notes")
LETTERS = 1100
FIRST_PAGE = 192
VOCAB = 3000


def write_letters():
    target = HOME / "letters.jsonl"
    if target.exists():
        return target
    HOME.mkdir(exist_ok=True)
    r = random.Random(3)
    syllables = [
        "car",
        "dio",
        "ne",
        "phro",
        "hep",
        "at",
        "itis",
        "osis",
        "emia",
        "ven",
        "art",
        "er",
        "ial",
        "pul",
        "mo",
        "na",
        "ry",
        "ten",
        "sion",
        "gas",
        "tro",
        "scop",
        "y",
        "ic",
        "al",
        "in",
        "fu",
        "sed",
    ]
    words = ["".join(r.choices(syllables, k=r.randint(1, 4))) for _ in range(30000)]
    with target.open("w") as f:
        for _ in range(LETTERS):
            picked = r.choices(words, k=r.randint(1800, 2800))
            text = " ".join(w.capitalize() + "." if i % 13 == 0 else w for i, w in enumerate(picked))
            f.write(json.dumps({"text": text, "urgency": r.randrange(5)}) + "\n")
    return target


def vocabulary(letters):
    path = HOME / "bpe.json"
    if not path.exists():
        tok = Tokenizer(models.BPE(unk_token="[UNK]"))
        tok.normalizer = normalizers.Sequence([normalizers.NFKD(), normalizers.Lowercase(), normalizers.StripAccents()])
        tok.pre_tokenizer = pre_tokenizers.Whitespace()
        trainer = trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=["[PAD]", "[UNK]"], show_progress=False)
        tok.train_from_iterator((row["text"] for row in letters[:40]), trainer)
        tok.save(str(path))
    return Tokenizer.from_file(str(path))


class LetterStream(IterableDataset):
    def __init__(self, letters, tok):
        self.letters, self.tok, self.epoch = letters, tok, 0

    def __iter__(self):
        order = list(range(len(self.letters)))
        random.Random(self.epoch).shuffle(order)
        for i in order:
            row = self.letters[i]
            ids = self.tok.encode(row["text"]).ids[:FIRST_PAGE]
            yield torch.tensor(ids), row["urgency"]


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, 48, padding_idx=0)
        self.convs = nn.ModuleList(nn.Conv1d(48, 48, k, padding=k // 2) for k in (3, 5))
        self.head = nn.Linear(96, 5)

    def forward(self, ids):
        h = self.emb(ids).transpose(1, 2)
        return self.head(torch.cat([c(h).relu().amax(2) for c in self.convs], 1))


def main():
    torch.manual_seed(0)
    with write_letters().open() as f:
        letters = [json.loads(line) for line in f]
    stream = LetterStream(letters, vocabulary(letters))
    loader = DataLoader(stream, batch_size=16)
    model = Reader()
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    loss_of = nn.CrossEntropyLoss()
    for epoch in range(3):
        t0 = time.perf_counter()
        stream.epoch = epoch
        running, n = torch.zeros(()), 0
        for ids, urgency in loader:
            opt.zero_grad()
            loss = loss_of(model(ids), urgency)
            loss.backward()
            opt.step()
            running += loss.detach()
            n += 1
        log.info("epoch %d: %.4f over %d steps", epoch, running.item() / n, n)
        print(f"epoch_seconds {time.perf_counter() - t0:.3f}", flush=True)


if __name__ == "__main__":
    main()
