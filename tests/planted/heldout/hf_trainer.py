"""transformers' Trainer; a tokenizer written in Python works in __getitem__."""

import random
import re
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

WORDS = [f"word{i}" for i in range(2000)]


class Simple:
    def __init__(self):
        self.ids = {w: i + 3 for i, w in enumerate(WORDS)}

    def encode(self, text):
        pieces = []
        for token in re.findall(r"\w+|[^\w\s]", text.lower()):
            if token in self.ids:
                pieces.append(self.ids[token])
            else:
                pieces += [3 + (ord(c) % 1000) for c in token]
        return ([1, *pieces, 2])[:32]


class Texts(Dataset):
    def __init__(self, n):
        r = random.Random(0)
        self.tok = Simple()
        self.texts = [" ".join(r.choices(WORDS, k=900)) + "!" for _ in range(300)]
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        ids = self.tok.encode(self.texts[i % 300])
        return {
            "input_ids": torch.tensor(ids),
            "attention_mask": torch.ones(len(ids), dtype=torch.long),
            "labels": i % 2,
        }


if __name__ == "__main__":
    torch.set_num_threads(1)
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=2100,
            hidden_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=64,
        )
    )
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(
            out,
            per_device_train_batch_size=32,
            num_train_epochs=3,
            report_to=[],
            save_strategy="no",
            logging_steps=50,
            use_cpu=True,
        )
        Trainer(model, args, train_dataset=Texts(20000)).train()
