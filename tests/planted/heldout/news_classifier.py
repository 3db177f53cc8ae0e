"""Topic and tone classifier on top of frozen word vectors, driven by a small Trainer."""

import argparse
import json
import os
import tempfile
import time
from collections import deque
from dataclasses import asdict, dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset, random_split


@dataclass
class TrainConfig:
    vocab: int = 120_000
    dim: int = 160
    doc_len: int = 64
    docs: int = 34_000
    val_docs: int = 2_000
    topics: int = 20
    tones: int = 3
    hidden: int = 512
    batch_size: int = 64
    epochs: int = 9
    lr: float = 5e-4
    save_every: int = 10
    keep_last: int = 2
    log_every: int = 100
    seed: int = 1


class NewsNet(nn.Module):
    def __init__(self, vectors, cfg):
        super().__init__()
        self.embed = nn.Embedding.from_pretrained(vectors, freeze=True)
        self.trunk = nn.Sequential(
            nn.Linear(cfg.dim, cfg.hidden),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Linear(cfg.hidden, cfg.hidden),
            nn.ReLU(),
        )
        self.topic = nn.Linear(cfg.hidden, cfg.topics)
        self.tone = nn.Linear(cfg.hidden, cfg.tones)

    def forward(self, tokens):
        h = self.trunk(self.embed(tokens).mean(1))
        return self.topic(h), self.tone(h)


def make_corpus(cfg):
    g = torch.Generator().manual_seed(cfg.seed)
    vectors = torch.randn(cfg.vocab, cfg.dim, generator=g)
    topic = torch.randint(cfg.topics, (cfg.docs,), generator=g)
    tone = torch.randint(cfg.tones, (cfg.docs,), generator=g)
    tokens = torch.randint(cfg.vocab, (cfg.docs, cfg.doc_len), generator=g)
    band = cfg.vocab // cfg.topics
    tokens[:, :24] = tokens[:, :24] % band + (topic * band).unsqueeze(1)
    tokens[:, 24:32] = tokens[:, 24:32] % 50 + (tone * 50).unsqueeze(1)
    return vectors, TensorDataset(tokens, topic, tone)


class Trainer:
    def __init__(self, model, train_loader, val_loader, cfg, out_dir):
        self.model, self.cfg, self.out_dir = model, cfg, out_dir
        self.train_loader, self.val_loader = train_loader, val_loader
        params = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(params, lr=cfg.lr)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(
            self.optimizer, T_max=cfg.epochs * len(train_loader)
        )
        self.step = 0
        self.best = float("inf")
        self.recent = deque()

    def save(self, name):
        path = os.path.join(self.out_dir, name)
        torch.save(
            {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "scheduler": self.scheduler.state_dict(),
                "step": self.step,
                "config": asdict(self.cfg),
            },
            path,
        )
        return path

    def save_recent(self):
        self.recent.append(self.save(f"step_{self.step:06d}.pt"))
        while len(self.recent) > self.cfg.keep_last:
            os.remove(self.recent.popleft())

    def loss(self, tokens, topic, tone):
        topic_logits, tone_logits = self.model(tokens)
        return F.cross_entropy(topic_logits, topic) + 0.3 * F.cross_entropy(tone_logits, tone), topic_logits

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        total = hits = count = 0
        for tokens, topic, tone in self.val_loader:
            loss, logits = self.loss(tokens, topic, tone)
            total += loss.item() * len(topic)
            hits += (logits.argmax(1) == topic).sum().item()
            count += len(topic)
        self.model.train()
        return total / count, hits / count

    def fit(self):
        history = []
        for epoch in range(self.cfg.epochs):
            for tokens, topic, tone in self.train_loader:
                self.optimizer.zero_grad()
                loss, _ = self.loss(tokens, topic, tone)
                loss.backward()
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optimizer.step()
                self.scheduler.step()
                self.step += 1
                if self.step % self.cfg.log_every == 0:
                    print(f"step {self.step} loss {loss.item():.4f}", flush=True)
                if self.step % self.cfg.save_every == 0:
                    self.save_recent()
            val_loss, acc = self.validate()
            history.append({"epoch": epoch, "val_loss": val_loss, "acc": acc})
            if val_loss < self.best:
                self.best = val_loss
                self.save("best.pt")
            print(f"epoch {epoch}: val loss {val_loss:.4f} acc {acc:.3f}", flush=True)
        with open(os.path.join(self.out_dir, "history.json"), "w") as f:
            json.dump(history, f)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fixed", action="store_true")
    args = parser.parse_args()
    cfg = TrainConfig()
    if args.fixed:
        cfg.save_every = 1000
    torch.manual_seed(cfg.seed)
    vectors, corpus = make_corpus(cfg)
    train_set, val_set = random_split(corpus, [cfg.docs - cfg.val_docs, cfg.val_docs])
    train_loader = DataLoader(train_set, batch_size=cfg.batch_size, shuffle=True)
    val_loader = DataLoader(val_set, batch_size=250)
    with tempfile.TemporaryDirectory() as out_dir:
        trainer = Trainer(NewsNet(vectors, cfg), train_loader, val_loader, cfg, out_dir)
        start = time.time()
        trainer.fit()
        print(f"{trainer.step} steps in {time.time() - start:.1f} s")


if __name__ == "__main__":
    main()
