"""Event type and magnitude from variable-length multichannel recordings of two stations."""

import argparse
import time
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import ConcatDataset, DataLoader, Dataset, random_split


@dataclass
class Config:
    per_station: int = 4420
    val_size: int = 240
    channels: int = 16
    min_len: int = 90
    max_len: int = 140
    event_types: int = 6
    width: int = 32
    batch_size: int = 40
    epochs: int = 11
    lr: float = 1e-3
    num_workers: int = 2
    seed: int = 11


class StationRecords(Dataset):
    def __init__(self, cfg, station):
        rng = np.random.default_rng(cfg.seed + station)
        self.records, self.types, self.magnitudes = [], [], []
        lengths = rng.integers(cfg.min_len, cfg.max_len + 1, cfg.per_station)
        flat = torch.from_numpy(rng.standard_normal((int(lengths.sum()), cfg.channels), dtype=np.float32))
        for rec in torch.split(flat, lengths.tolist()):
            kind = int(rng.integers(cfg.event_types))
            mag = float(rng.uniform(0.5, 2.0))
            rec[:, kind] *= mag
            rec[:, -1] += 0.3 * station
            self.records.append(rec)
            self.types.append(kind)
            self.magnitudes.append(mag)

    def __len__(self):
        return len(self.records)

    def __getitem__(self, idx):
        return self.records[idx], self.types[idx], self.magnitudes[idx]


def collate_records(batch):
    max_len = max(len(rec) for rec, _, _ in batch)
    channels = batch[0][0].shape[1]
    padded = torch.zeros(len(batch), max_len, channels)
    mask = torch.zeros(len(batch), max_len, dtype=torch.bool)
    types = torch.zeros(len(batch), dtype=torch.long)
    magnitudes = torch.zeros(len(batch))
    for i, (rec, kind, mag) in enumerate(batch):
        for t in range(len(rec)):
            padded[i, t] = rec[t]
            mask[i, t] = True
        types[i] = kind
        magnitudes[i] = mag
    return padded, mask, types, magnitudes


def collate_padded(batch):
    recs, types, magnitudes = zip(*batch)
    padded = pad_sequence(recs, batch_first=True)
    lengths = torch.tensor([len(r) for r in recs])
    mask = torch.arange(padded.shape[1]).unsqueeze(0) < lengths.unsqueeze(1)
    return padded, mask, torch.tensor(types), torch.tensor(magnitudes, dtype=torch.float32)


class EventNet(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.conv1 = nn.Conv1d(cfg.channels, cfg.width, 3, padding=1)
        self.conv2 = nn.Conv1d(cfg.width, cfg.width, 3, padding=1)
        self.type_head = nn.Linear(cfg.width, cfg.event_types)
        self.magnitude_head = nn.Sequential(nn.Linear(cfg.width, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, x, mask):
        h = F.relu(self.conv1(x.transpose(1, 2)))
        h = F.relu(self.conv2(h))
        m = mask.unsqueeze(1).to(h.dtype)
        pooled = (h * m).sum(2) / m.sum(2)
        return self.type_head(pooled), self.magnitude_head(pooled).squeeze(1)


@torch.no_grad()
def validate(model, loader):
    model.eval()
    correct = count = 0
    abs_err = 0.0
    for x, mask, types, mags in loader:
        logits, pred = model(x, mask)
        correct += (logits.argmax(1) == types).sum().item()
        abs_err += (pred - mags).abs().sum().item()
        count += len(types)
    model.train()
    return correct / count, abs_err / count


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fixed", action="store_true")
    args = parser.parse_args()
    cfg = Config()
    torch.manual_seed(cfg.seed)
    torch.set_num_threads(1)

    full = ConcatDataset([StationRecords(cfg, 0), StationRecords(cfg, 1)])
    train_set, val_set = random_split(full, [len(full) - cfg.val_size, cfg.val_size])
    collate = collate_padded if args.fixed else collate_records
    train_loader = DataLoader(
        train_set,
        batch_size=cfg.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=cfg.num_workers,
        persistent_workers=True,
        collate_fn=collate,
    )
    val_loader = DataLoader(val_set, batch_size=cfg.batch_size, collate_fn=collate)

    model = EventNet(cfg)
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=5 * cfg.lr, total_steps=cfg.epochs * len(train_loader)
    )
    steps, start = 0, time.time()
    for epoch in range(1, cfg.epochs + 1):
        loss_sum = 0.0
        for x, mask, types, mags in train_loader:
            logits, pred = model(x, mask)
            loss = F.cross_entropy(logits, types) + 0.5 * F.smooth_l1_loss(pred, mags)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            loss_sum += loss.item()
            steps += 1
        line = f"epoch {epoch}/{cfg.epochs} loss {loss_sum / len(train_loader):.4f}"
        if epoch % 2 == 0:
            acc, mae = validate(model, val_loader)
            line += f" val acc {acc:.3f} mae {mae:.3f}"
        print(line, flush=True)
    print(f"{steps} steps in {time.time() - start:.1f} s")


if __name__ == "__main__":
    main()
