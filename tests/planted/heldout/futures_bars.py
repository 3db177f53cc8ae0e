# Next-bar return of 24 futures from the last 48 five-minute bars.
import bisect
import pathlib
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

ROOT = pathlib.Path("data_futures_bars")
SYMBOLS, BARS, LOOKBACK, FIELDS = 24, 5000, 48, 6


def make_bars():
    ROOT.mkdir(exist_ok=True)
    for s in range(SYMBOLS):
        f = ROOT / f"sym{s:02d}.npy"
        if not f.exists():
            rng = np.random.default_rng(s)
            np.save(f, rng.normal(size=(BARS, FIELDS)).astype(np.float32))
    return sorted(ROOT.glob("sym*.npy"))


class BarWindows(Dataset):
    def __init__(self, files):
        self.series = [np.load(f) for f in files]
        self.ends, total = [], 0
        for s in self.series:
            total += len(s) - LOOKBACK
            self.ends.append(total)

    def __len__(self):
        return self.ends[-1]

    def __getitem__(self, i):
        k = bisect.bisect_right(self.ends, i)
        row = i - (self.ends[k - 1] if k else 0)
        bars = self.series[k]
        window = torch.tensor(bars[row : row + LOOKBACK])
        target = torch.tensor(bars[row + LOOKBACK, 3])
        return window, target, k


class ReturnModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.symbol = nn.Embedding(SYMBOLS, 8)
        self.body = nn.Sequential(nn.Linear(LOOKBACK * FIELDS + 8, 64), nn.GELU(), nn.Linear(64, 1))

    def forward(self, w, k):
        return self.body(torch.cat([w.flatten(1), self.symbol(k)], 1)).squeeze(1)


class Experiment:
    def __init__(self):
        torch.manual_seed(7)
        self.loader = DataLoader(BarWindows(make_bars()), batch_size=1024, shuffle=True, drop_last=True)
        self.model = ReturnModel()
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.02, momentum=0.9)
        self.sched = torch.optim.lr_scheduler.OneCycleLR(self.opt, 0.05, total_steps=3 * len(self.loader))

    def fit(self, epochs=3):
        for epoch in range(epochs):
            t0 = time.perf_counter()
            acc = torch.zeros(())
            for _ in range(2):  # two passes over the bars count as one epoch here
                for w, y, k in self.loader:
                    loss = nn.functional.huber_loss(self.model(w, k), y)
                    self.opt.zero_grad(set_to_none=True)
                    loss.backward()
                    self.opt.step()
                    acc += loss.detach()
            self.sched.step()
            print(f"epoch {epoch}: huber {acc.item() / (2 * len(self.loader)):.5f}")
            print(f"epoch_seconds {time.perf_counter() - t0:.3f}", flush=True)


if __name__ == "__main__":
    Experiment().fit()
