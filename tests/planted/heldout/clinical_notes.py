"""Triage level from free-text clinical notes."""

import os

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
import random
import sys
import time

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import PreTrainedTokenizerFast

FIXED = "--fixed" in sys.argv
MAX_LEN, EPOCHS, BATCH, N_NOTES = 512, 30, 24, 1200

random.seed(3)
SYL = (
    "ar bi cor dys em fib gly hem in ja ket lar myo ne os pul quin ren ster thy ur vas xa yl zo itis emia osis".split()
)
WORDS = ["".join(random.choices(SYL, k=random.randint(1, 5))) for _ in range(30000)]


def write_note(level):
    words = random.choices(WORDS, k=random.randint(650, 800))
    for _ in range(40):
        words[random.randrange(len(words))] = WORDS[level * 17]
    for i in range(12, len(words), 14):
        words[i] += random.choice([".", ",", f" {random.randint(1, 400)} mg/dL;"])
    return " ".join(words)


def train_tokenizer(texts):
    tok = Tokenizer(models.BPE(unk_token="[UNK]"))
    tok.pre_tokenizer = pre_tokenizers.Whitespace()
    tok.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=3000, special_tokens=["[UNK]", "[PAD]"], show_progress=False)
    )
    return PreTrainedTokenizerFast(tokenizer_object=tok, unk_token="[UNK]", pad_token="[PAD]")


class Notes(Dataset):
    def __init__(self, texts, levels, tokenizer):
        self.texts, self.levels, self.tokenizer = texts, torch.tensor(levels), tokenizer

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, i):
        enc = self.tokenizer(
            self.texts[i],
            truncation=True,
            max_length=MAX_LEN,
            padding="max_length",
            return_tensors="pt",
            return_token_type_ids=False,
        )
        return {"input_ids": enc["input_ids"][0], "attention_mask": enc["attention_mask"][0], "label": self.levels[i]}


class TokenizedNotes(Dataset):
    """Same samples, tokenised once, in one batched call."""

    def __init__(self, texts, levels, tokenizer):
        enc = tokenizer(
            texts,
            truncation=True,
            max_length=MAX_LEN,
            padding="max_length",
            return_tensors="pt",
            return_token_type_ids=False,
        )
        self.ids, self.mask, self.levels = enc["input_ids"], enc["attention_mask"], torch.tensor(levels)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "attention_mask": self.mask[i], "label": self.levels[i]}


class Triage(nn.Module):
    def __init__(self, vocab, d=48, n=5):
        super().__init__()
        self.emb = nn.Embedding(vocab, d, padding_idx=1)
        self.att = nn.Linear(d, 1)
        self.out = nn.Linear(d, n)

    def forward(self, ids, mask):
        h = self.emb(ids)
        w = self.att(h).squeeze(-1).masked_fill(mask == 0, -1e9).softmax(1)
        return self.out((h * w.unsqueeze(-1)).sum(1))


if __name__ == "__main__":
    torch.set_num_threads(1)
    levels = [random.randrange(5) for _ in range(N_NOTES)]
    texts = [write_note(l) for l in levels]
    tokenizer = train_tokenizer(texts[:200])
    data = (TokenizedNotes if FIXED else Notes)(texts, levels, tokenizer)
    loader = DataLoader(data, batch_size=BATCH, shuffle=True, num_workers=2, persistent_workers=True)
    model = Triage(len(tokenizer))
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    loss_fn = nn.CrossEntropyLoss()
    for ep in range(EPOCHS):
        t0, seen, tot = time.time(), 0, 0.0
        for step, b in enumerate(loader):
            logits = model(b["input_ids"], b["attention_mask"])
            loss = loss_fn(logits, b["label"])
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            seen += len(b["label"])
            if step % 50 == 49:
                tot = loss.item()
                print(f"ep {ep} step {step + 1} loss {tot:.3f} {seen / (time.time() - t0):.0f} notes/s", flush=True)
