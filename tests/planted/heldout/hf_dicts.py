"""Examples are dicts, the collator pads and tokenises; everything on the main thread, as in many notebooks."""

import random
import re

import torch
from torch.utils.data import DataLoader

from stoker.sim import Device

WORDS = ["alpha", "beta", "gamma", "delta", "unbelievable", "tokens", "training", "of", "the", "a"]


def load_examples():
    rng = random.Random(0)
    return [{"text": " ".join(rng.choices(WORDS, k=300)), "label": i % 2} for i in range(480)]


VOCABULARY = {
    piece: n
    for n, piece in enumerate(sorted({w[i:j] for w in WORDS for i in range(len(w)) for j in range(i + 1, len(w) + 1)}))
}


class SlowTokenizer:
    def tokenize(self, word):
        pieces, start = [], 0
        while start < len(word):
            end = len(word)
            while word[start:end] not in VOCABULARY:
                end -= 1
            pieces.append(VOCABULARY[word[start:end]])
            start = end
        return pieces

    def __call__(self, texts):
        ids = [[p for w in re.findall(r"\w+", t.lower()) for p in self.tokenize(w)][:320] for t in texts]
        longest = max(map(len, ids))
        return {"input_ids": torch.tensor([row + [0] * (longest - len(row)) for row in ids])}


class Collator:
    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def __call__(self, features):
        batch = self.tokenizer([f["text"] for f in features])
        batch["labels"] = torch.tensor([f["label"] for f in features])
        return batch


def main():
    loader = DataLoader(load_examples(), batch_size=32, shuffle=True, collate_fn=Collator(SlowTokenizer()))
    model = torch.nn.Sequential(torch.nn.EmbeddingBag(len(VOCABULARY), 16), torch.nn.Linear(16, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    device = Device(forward=0.002, backward=0.003, optimizer=0.001)
    device.place(model, optimizer)
    for _ in range(400):
        for inputs in loader:
            inputs = {k: v.to(device, non_blocking=True) for k, v in inputs.items()}
            labels = inputs.pop("labels")
            loss = torch.nn.functional.cross_entropy(model(inputs["input_ids"]), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    main()
