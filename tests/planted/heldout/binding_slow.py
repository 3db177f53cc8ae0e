# Drug / protein binding affinity, two-tower regressor.
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

data_dir = Path() / "data_binding"
N_PROTEINS, N_DRUGS, LAGS = 360, 140, 30


def make_assay():
    data_dir.mkdir(exist_ok=True)
    rng = np.random.default_rng(21)
    proteins = ["".join(rng.choice(list("ACDEFGHIKLMNPQRSTVWY"), 500)) for _ in range(N_PROTEINS)]
    (data_dir / "proteins.txt").write_text("\n".join(proteins))
    np.save(data_dir / "drugs.npy", (rng.random((N_DRUGS, 1024)) < 0.08).astype(np.float32))
    np.save(data_dir / "affinity.npy", rng.normal(6, 1, (N_PROTEINS, N_DRUGS)).astype(np.float32))


SCALES = np.random.default_rng(0).standard_normal((8, 20))
ALPHABET = {c: k for k, c in enumerate("ACDEFGHIKLMNPQRSTVWY")}


def describe(sequence):
    """Autocorrelation over eight residue scales, followed by dipeptide composition."""
    codes = np.array([ALPHABET[c] for c in sequence])
    out = []
    for scale in SCALES:
        profile = scale[codes]
        profile = (profile - profile.mean()) / profile.std()
        for lag in range(1, LAGS + 1):
            out.append(np.mean(profile[:-lag] * profile[lag:]))
    pairs = np.bincount(codes[:-1] * 20 + codes[1:], minlength=400) / (len(codes) - 1)
    return np.concatenate([out, pairs]).astype(np.float32)


class Assay(Dataset):
    def __init__(self):
        self.proteins = (data_dir / "proteins.txt").read_text().split("\n")
        self.drugs = np.load(data_dir / "drugs.npy")
        self.affinity = np.load(data_dir / "affinity.npy")

    def __len__(self):
        return self.affinity.size

    def __getitem__(self, i):
        p, d = divmod(i, N_DRUGS)
        return {"protein": describe(self.proteins[p]), "drug": self.drugs[d], "pkd": self.affinity[p, d]}


class TwoTower(nn.Module):
    def __init__(self, width=768):
        super().__init__()
        self.protein = nn.Sequential(nn.Linear(8 * LAGS + 400, width), nn.ReLU(), nn.Linear(width, width))
        self.drug = nn.Sequential(nn.Linear(1024, width), nn.ReLU(), nn.Linear(width, width))
        self.mix = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, batch):
        both = torch.cat([self.protein(batch["protein"]), self.drug(batch["drug"])], dim=1)
        return self.mix(both)[:, 0]


def main(max_steps):
    if not (data_dir / "affinity.npy").exists():
        make_assay()
    loader = DataLoader(Assay(), batch_size=128, shuffle=True, num_workers=2, persistent_workers=True, drop_last=True)
    model = TwoTower()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    i = 0
    for epoch in range(200):
        for batch in loader:
            optimizer.zero_grad()
            loss = ((model(batch) - batch["pkd"]) ** 2).mean()
            loss.backward()
            optimizer.step()
            i += 1
            if i == 8:
                start = time.time()
            if i % 100 == 0:
                print("epoch %d  iter %d  mse %.3f" % (epoch, i, loss.item()), flush=True)
            if i == max_steps:
                print("seconds per step %.4f" % ((time.time() - start) / (i - 8)))
                sys.exit()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(int(sys.argv[2]) if sys.argv[1:2] == ["--steps"] else -1)
