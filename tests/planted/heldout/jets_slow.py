"""Jet tagging from reconstructed particles (deep-sets tagger)."""

import os
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, Dataset

FIELDS = [
    "pt",
    "eta",
    "phi",
    "energy",
    "d0",
    "d0_err",
    "dz",
    "dz_err",
    "charge",
    "is_mu",
    "is_el",
    "is_gamma",
    "is_had",
    "is_neut",
    "chi2",
    "n_hits",
    "n_pix",
    "iso",
    "puppi",
    "dr_axis",
    "rel_pt",
    "log_e",
]
STORE = "data_jets/events.npz"


def generate():
    if os.path.exists(STORE):
        return
    os.makedirs("data_jets", exist_ok=True)
    rng = np.random.default_rng(9)
    n = 6000
    label = rng.integers(0, 5, n)
    count = rng.integers(20, 44, n)
    parts = rng.normal(size=(count.sum(), len(FIELDS))).astype(np.float32)
    parts[:, 0] += np.repeat(label, count) * 0.15
    np.savez("data_jets/tmp.npz", parts=parts, count=count, label=label)
    os.rename("data_jets/tmp.npz", STORE)


class Events(Dataset):
    def __init__(self):
        z = np.load(STORE)
        self.label = z["label"]
        self.end = np.cumsum(z["count"])
        self.start = self.end - z["count"]
        parts = z["parts"]
        self.columns = {f: np.ascontiguousarray(parts[:, k]) for k, f in enumerate(FIELDS)}

    def __len__(self):
        return len(self.label)

    def __getitem__(self, i):
        s, e = self.start[i], self.end[i]
        ev = {f: torch.from_numpy(c[s:e]) for f, c in self.columns.items()}
        ev["label"] = int(self.label[i])
        return ev


def collate(events):
    # events have different multiplicities
    return events


class Tagger(nn.Module):
    def __init__(self, width=448):
        super().__init__()
        self.phi = nn.Sequential(
            nn.Linear(len(FIELDS), width),
            nn.GELU(),
            nn.Linear(width, width),
            nn.GELU(),
            nn.Linear(width, width),
            nn.GELU(),
        )
        self.rho = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, 5))

    def forward(self, parts, owner, n):
        h = self.phi(parts)
        pooled = h.new_zeros(n, h.shape[1]).index_add_(0, owner, h)
        return self.rho(pooled / 32)


class Trainer:
    def __init__(self, batch=64, workers=2):
        self.loader = DataLoader(
            Events(),
            batch,
            shuffle=True,
            num_workers=workers,
            collate_fn=collate,
            drop_last=True,
            persistent_workers=True,
        )
        self.net = Tagger()
        self.ema = torch.optim.swa_utils.AveragedModel(
            self.net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.995)
        )
        self.opt = torch.optim.AdamW(self.net.parameters(), 1e-3)

    def unpack(self, batch):
        parts = torch.cat([torch.stack([ev[f] for f in FIELDS], 1) for ev in batch])
        count = torch.tensor([len(ev["pt"]) for ev in batch])
        y = torch.tensor([ev["label"] for ev in batch])
        return parts, torch.repeat_interleave(torch.arange(len(count)), count), y

    def fit(self, epochs):
        for epoch in range(epochs):
            t0, n = time.time(), 0
            for k, batch in enumerate(self.loader, 1):
                parts, owner, y = self.unpack(batch)
                loss = F.cross_entropy(self.net(parts, owner, len(y)), y)
                self.opt.zero_grad()
                loss.backward()
                self.opt.step()
                self.ema.update_parameters(self.net)
                n += len(y)
                if k % 20 == 0:
                    print(f"epoch {epoch} {k} loss {loss.item():.3f} {n / (time.time() - t0):.0f} events/s", flush=True)
            print(f"epoch {epoch} took {time.time() - t0:.1f}s", flush=True)


if __name__ == "__main__":
    mp.set_sharing_strategy("file_system")
    generate()
    torch.manual_seed(4)
    Trainer().fit(epochs=30)
