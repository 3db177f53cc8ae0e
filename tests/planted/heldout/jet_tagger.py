"""Top-quark tagging from jet constituents (attention over particles)."""

import os
import time

import numpy as np
import torch
import torch.multiprocessing
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

# "RuntimeError: received 0 items of ancdata" on the farm nodes without this
torch.multiprocessing.set_sharing_strategy("file_system")

FIELDS = ["pt", "eta", "phi", "energy", "charge", "d0", "dz", "btag_aux"]
FOLDER = "data_jet_tagger"
JETS = 4800


def toy_monte_carlo():
    path = os.path.join(FOLDER, "jets.npz")
    if not os.path.exists(path):
        os.makedirs(FOLDER, exist_ok=True)
        rng = np.random.default_rng(11)
        n = rng.integers(10, 42, JETS)
        cols = {f: rng.normal(size=n.sum()).astype(np.float32) for f in FIELDS}
        np.savez(
            path,
            n=n,
            label=rng.integers(0, 2, JETS).astype(np.float32),
            weight=rng.random(JETS).astype(np.float32) + 0.5,
            **cols,
        )
    return path


class Jets(Dataset):
    def __init__(self, path):
        raw = np.load(path)
        self.columns = {f: raw[f] for f in FIELDS}
        self.label, self.weight = raw["label"], raw["weight"]
        self.stop = np.cumsum(raw["n"])
        self.start = self.stop - raw["n"]

    def __len__(self):
        return len(self.label)

    def __getitem__(self, i):
        a, b = self.start[i], self.stop[i]
        jet = {f: torch.from_numpy(c[a:b]) for f, c in self.columns.items()}
        jet["label"] = torch.tensor(self.label[i])
        jet["weight"] = torch.tensor(self.weight[i])
        return jet


def keep_as_is(jets):
    return jets


class Tagger(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.inp = nn.Linear(len(FIELDS), width)
        self.block = nn.TransformerEncoderLayer(width, 2, 64, dropout=0.0, batch_first=True)
        self.out = nn.Linear(width, 1)

    def forward(self, x, missing):
        h = self.block(self.inp(x), src_key_padding_mask=missing)
        return self.out(h.masked_fill(missing.unsqueeze(2), 0).mean(1)).squeeze(1)


def to_dense(jets):
    x = torch.stack([pad_sequence([j[f] for j in jets], batch_first=True) for f in FIELDS], 2)
    lengths = torch.tensor([len(j["pt"]) for j in jets])
    missing = torch.arange(x.shape[1])[None] >= lengths[:, None]
    return x, missing, torch.stack([j["label"] for j in jets]), torch.stack([j["weight"] for j in jets])


def main():
    torch.manual_seed(0)
    loader = DataLoader(
        Jets(toy_monte_carlo()),
        batch_size=64,
        shuffle=True,
        num_workers=2,
        collate_fn=keep_as_is,
        persistent_workers=True,
    )
    model = Tagger()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(3):
        start = time.perf_counter()
        for jets in loader:
            x, missing, label, weight = to_dense(jets)
            loss = nn.functional.binary_cross_entropy_with_logits(model(x, missing), label, weight)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: last loss {loss.item():.4f}")
        print(f"epoch_seconds {time.perf_counter() - start:.3f}", flush=True)


if __name__ == "__main__":
    main()
