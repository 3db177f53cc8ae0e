"""Currency carry forecasts with a small temporal convolution network."""

import time
from pathlib import Path

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import nn

DATA = Path("data_fx_carry")
LOOKBACK, FIELDS, BATCH = 48, 6, 512


def load():
    path = DATA / "bars.npy"
    if not path.exists():
        DATA.mkdir(exist_ok=True)
        np.save(path, np.random.default_rng(5).normal(size=(60_000, FIELDS)).astype(np.float32))
    return np.load(path)


def batches(bars, rng):
    """Shuffled windows, each batch gathered by one fancy index."""
    windows = sliding_window_view(bars[:-1], LOOKBACK, axis=0)  # (N, FIELDS, LOOKBACK), a view
    targets = bars[LOOKBACK:, 3]
    order = rng.permutation(len(windows))
    for i in range(0, len(order) - BATCH + 1, BATCH):
        take = np.sort(order[i : i + BATCH])
        yield torch.from_numpy(windows[take]), torch.from_numpy(targets[take])


class Block(nn.Module):
    def __init__(self, cin, cout, dilation):
        super().__init__()
        self.conv = nn.Conv1d(cin, cout, 3, dilation=dilation, padding=dilation)
        self.skip = nn.Conv1d(cin, cout, 1)

    def forward(self, x):
        return torch.relu(self.conv(x)) + self.skip(x)


def main():
    torch.manual_seed(2)
    rng = np.random.default_rng(2)
    bars = load()
    net = nn.Sequential(
        Block(FIELDS, 64, 1),
        Block(64, 64, 2),
        Block(64, 64, 4),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(64, 1),
    )
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for epoch in range(3):
        t0 = time.perf_counter()
        total, n = torch.zeros(()), 0
        for x, y in batches(bars, rng):
            opt.zero_grad()
            loss = nn.functional.mse_loss(net(x).squeeze(1), y)
            loss.backward()
            opt.step()
            total += loss.detach()
            n += 1
        print(f"{epoch}: mse {total.item() / n:.4f} ({n} steps)")
        print(f"epoch_seconds {time.perf_counter() - t0:.3f}", flush=True)


main()
