"""Joint intent and slot tagging of short utterances with a small transformer encoder."""

import argparse
import gc
import time
from dataclasses import dataclass
from typing import List

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, RandomSampler, Subset

CFG = {
    "utterances": 250_000,
    "val": 512,
    "length": 16,
    "vocab": 5000,
    "intents": 24,
    "slots": 12,
    "dim": 64,
    "layers": 2,
    "batch_size": 128,
    "steps_per_epoch": 160,
    "epochs": 4,
    "lr": 1e-3,
    "seed": 17,
}


@dataclass
class Utterance:
    tokens: List[int]
    slots: List[int]
    intent: int


def load_utterances(cfg):
    rng = np.random.default_rng(cfg["seed"])
    shape = (cfg["utterances"], cfg["length"])
    intents = rng.integers(0, cfg["intents"], cfg["utterances"])
    tokens = rng.integers(0, cfg["vocab"], shape)
    tokens[:, 0] = intents * 7 + rng.integers(0, 5, cfg["utterances"])
    slots = tokens % cfg["slots"]
    return [Utterance(t, s, i) for t, s, i in zip(tokens.tolist(), slots.tolist(), intents.tolist())]


class UtteranceDataset(Dataset):
    def __init__(self, utterances):
        self.utterances = utterances

    def __len__(self):
        return len(self.utterances)

    def __getitem__(self, idx):
        u = self.utterances[idx]
        return torch.tensor(u.tokens), torch.tensor(u.slots), u.intent


class JointTagger(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.embed = nn.Embedding(cfg["vocab"], cfg["dim"])
        self.position = nn.Parameter(torch.zeros(1, cfg["length"], cfg["dim"]))
        layer = nn.TransformerEncoderLayer(
            cfg["dim"], nhead=4, dim_feedforward=2 * cfg["dim"], dropout=0.1, batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, cfg["layers"])
        self.intent_head = nn.Linear(cfg["dim"], cfg["intents"])
        self.slot_head = nn.Linear(cfg["dim"], cfg["slots"])

    def forward(self, tokens):
        h = self.encoder(self.embed(tokens) + self.position)
        return self.intent_head(h.mean(1)), self.slot_head(h)


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    intent_hits = slot_hits = n = slot_n = 0
    for tokens, slots, intents in loader:
        intent_logits, slot_logits = model(tokens)
        intent_hits += (intent_logits.argmax(-1) == intents).sum().item()
        slot_hits += (slot_logits.argmax(-1) == slots).sum().item()
        n += intents.numel()
        slot_n += slots.numel()
    model.train()
    return intent_hits / n, slot_hits / slot_n


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fixed", action="store_true")
    args = parser.parse_args()
    cfg = CFG
    torch.manual_seed(cfg["seed"])

    dataset = UtteranceDataset(load_utterances(cfg))
    val_set = Subset(dataset, range(cfg["val"]))
    train_set = Subset(dataset, range(cfg["val"], len(dataset)))
    sampler = RandomSampler(train_set, replacement=True, num_samples=cfg["steps_per_epoch"] * cfg["batch_size"])
    train_loader = DataLoader(train_set, batch_size=cfg["batch_size"], sampler=sampler)
    val_loader = DataLoader(val_set, batch_size=256)

    model = JointTagger(cfg)
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg["lr"])
    warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 50))

    steps, start = 0, time.time()
    for epoch in range(cfg["epochs"]):
        running = 0.0
        for i, (tokens, slots, intents) in enumerate(train_loader):
            intent_logits, slot_logits = model(tokens)
            loss = F.cross_entropy(intent_logits, intents)
            loss = loss + F.cross_entropy(slot_logits.flatten(0, 1), slots.flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            warmup.step()
            running += loss.item()
            steps += 1
            if (i + 1) % 40 == 0:
                print(f"epoch {epoch} {i + 1}/{len(train_loader)} loss {running / (i + 1):.4f}", flush=True)
            del intent_logits, slot_logits, loss
            if not args.fixed:
                gc.collect()
        intent_acc, slot_acc = evaluate(model, val_loader)
        print(f"epoch {epoch}: intent acc {intent_acc:.3f} slot acc {slot_acc:.3f}", flush=True)
    print(f"{steps} steps in {time.time() - start:.1f} s")


if __name__ == "__main__":
    main()
