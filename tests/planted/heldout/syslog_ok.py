"""Next-event model over sessions of parsed log templates (anomaly scoring)."""

import json
import os
import random
import time

import numpy as np
import torch
import torch.nn as nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

FILE = "data_syslog/sessions.jsonl"
TEMPLATES = 400
MAX_LEN = 448


def collect():
    if os.path.exists(FILE):
        return
    os.makedirs("data_syslog", exist_ok=True)
    rng = np.random.default_rng(77)
    with open(FILE + ".tmp", "w") as f:
        for i in range(1600):
            n = int(np.clip(rng.lognormal(4.2, 0.85), 12, MAX_LEN))
            ev = (np.cumsum(rng.integers(0, 5, n)) + rng.integers(TEMPLATES)) % (TEMPLATES - 1) + 1
            f.write(json.dumps({"host": f"node{i % 60}", "events": ev.tolist()}) + "\n")
    os.rename(FILE + ".tmp", FILE)


class Sessions(Dataset):
    def __init__(self):
        with open(FILE) as f:
            self.seqs = [torch.tensor(json.loads(l)["events"]) for l in f]

    def __len__(self):
        return len(self.seqs)

    def __getitem__(self, i):
        return self.seqs[i]


class LengthBatches:
    """Batches of sessions of about equal length, in random order."""

    def __init__(self, lengths, batch):
        self.lengths, self.batch = np.asarray(lengths), batch

    def __len__(self):
        return len(self.lengths) // self.batch

    def __iter__(self):
        order = np.lexsort((np.random.random(len(self.lengths)), self.lengths))
        batches = [order[k : k + self.batch].tolist() for k in range(0, len(order), self.batch)]
        random.shuffle(batches)
        return iter(batches)


def to_batch(seqs):
    x = pad_sequence(seqs, batch_first=True)
    return x[:, :-1], x[:, 1:]


class LogLM(nn.Module):
    def __init__(self, d=128, layers=2):
        super().__init__()
        self.emb = nn.Embedding(TEMPLATES, d, padding_idx=0)
        self.pos = nn.Embedding(MAX_LEN, d)
        layer = nn.TransformerEncoderLayer(d, 4, 3 * d, 0.0, batch_first=True)
        self.enc = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(d, TEMPLATES)

    def forward(self, x):
        L = x.shape[1]
        mask = torch.triu(torch.ones(L, L, dtype=torch.bool), 1)
        h = self.emb(x) + self.pos.weight[:L]
        return self.out(self.enc(h, mask=mask, is_causal=True))


def main():
    collect()
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    ds = Sessions()
    loader = DataLoader(ds, batch_sampler=LengthBatches([len(s) for s in ds.seqs], 16), collate_fn=to_batch)
    net = LogLM()
    opt = torch.optim.AdamW(net.parameters(), 3e-4, weight_decay=0.01)
    epochs = 20
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, epochs * len(loader))
    crit = nn.CrossEntropyLoss(ignore_index=0)
    for epoch in range(epochs):
        t0, events, n = time.time(), 0, 0
        for x, y in loader:
            loss = crit(net(x).flatten(0, 1), y.flatten())
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            events += int((y > 0).sum())
            n += 1
            if n % 25 == 0:
                print(
                    f"epoch {epoch} {n} loss {loss.item():.3f} {events / (time.time() - t0):.0f} events/s", flush=True
                )
        print(f"epoch {epoch} {time.time() - t0:.1f}s", flush=True)


if __name__ == "__main__":
    main()
