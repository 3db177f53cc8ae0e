"""Seizure detection: a random 2 s window out of a long EEG recording per sample."""

import argparse
import os
import tempfile

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

FS, CH = 256, 16


def record(folder, n, minutes):
    rng = np.random.default_rng(0)
    base = rng.standard_normal((FS * 60 * minutes, CH), dtype=np.float32)
    for k in range(n):
        np.save(os.path.join(folder, f"rec{k:03d}_{k % 2}.npy"), base if k % 2 == 0 else base * 1.7)


class Recordings(Dataset):
    """len() = recordings x windows per epoch"""

    def __init__(self, folder, per_recording=80, window=2 * FS, fixed=False):
        self.files = sorted(os.path.join(folder, f) for f in os.listdir(folder) if f.endswith(".npy"))
        self.per, self.window, self.fixed = per_recording, window, fixed

    def __len__(self):
        return len(self.files) * self.per

    def __getitem__(self, i):
        path = self.files[i // self.per]
        label = int(path[-5])
        if self.fixed:
            with open(path, "rb") as f:
                np.lib.format.read_magic(f)
                shape, _, dtype = np.lib.format.read_array_header_1_0(f)
                s = np.random.randint(shape[0] - self.window)
                f.seek(s * CH * 4, 1)
                x = np.fromfile(f, dtype, self.window * CH).reshape(self.window, CH)
        else:
            rec = np.load(path)
            s = np.random.randint(len(rec) - self.window)
            x = rec[s : s + self.window]
        return {"eeg": torch.from_numpy(x.T.copy()), "seizure": torch.tensor(float(label))}


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1 = nn.Conv1d(CH, 24, 7, stride=4)
        self.c2 = nn.Conv1d(24, 32, 5, stride=4)
        self.fc = nn.Linear(32, 1)

    def forward(self, x):
        h = torch.relu(self.c1(x))
        h = torch.relu(self.c2(h))
        return self.fc(h.abs().mean(-1)).squeeze(-1)


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--recordings", type=int, default=16)
    ap.add_argument("--minutes", type=int, default=30)
    ap.add_argument("--epochs", type=int, default=28)
    ap.add_argument("--fixed", action="store_true")
    a = ap.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="eeg_") as d:
        record(d, a.recordings, a.minutes)
        dl = DataLoader(
            Recordings(d, fixed=a.fixed), batch_size=32, shuffle=True, num_workers=2, persistent_workers=True
        )
        model = Detector()
        optim = torch.optim.Adam(model.parameters(), lr=1e-3)
        bce = nn.BCEWithLogitsLoss()
        for e in range(a.epochs):
            losses = []
            for b in dl:
                optim.zero_grad()
                loss = bce(model(b["eeg"]), b["seizure"])
                loss.backward()
                optim.step()
                losses.append(loss.detach())
            print(f"epoch {e}: {torch.stack(losses).mean():.4f}", flush=True)
            torch.save({"model": model.state_dict(), "epoch": e}, os.path.join(d, "ckpt.pt"))


if __name__ == "__main__":
    main()
