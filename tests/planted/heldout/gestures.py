"""Gesture recognition from wrist IMU recordings (6 channels, 100 Hz)."""

import argparse
import logging
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

log = logging.getLogger("gestures")


def simulate(n, length, classes, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, n)
    t = np.linspace(0, 1, length, dtype=np.float32)
    freq = 3 + 2 * y[:, None, None] + np.arange(6)[None, :, None]
    x = np.sin(6.28 * freq * t + rng.uniform(0, 6.28, (n, 6, 1))).astype(np.float32)
    x += 0.4 * rng.standard_normal((n, 6, length), dtype=np.float32)
    return x, y


def random_rotation(rng):
    q = rng.standard_normal(4)
    w, a, b, c = q / np.sqrt((q * q).sum())
    return np.array(
        [
            [1 - 2 * (b * b + c * c), 2 * (a * b - c * w), 2 * (a * c + b * w)],
            [2 * (a * b + c * w), 1 - 2 * (a * a + c * c), 2 * (b * c - a * w)],
            [2 * (a * c - b * w), 2 * (b * c + a * w), 1 - 2 * (a * a + b * b)],
        ],
        np.float32,
    )


class Gestures(Dataset):
    """Each draw is a new view: rotated sensor, warped time, sensor noise; then a log spectrogram."""

    def __init__(self, x, y):
        self.x, self.y = x, y
        self.window = np.hanning(256).astype(np.float32)
        self.rng = None

    def __len__(self):
        return len(self.y)

    def warp(self, x):
        n = x.shape[1]
        knots = np.cumsum(self.rng.uniform(0.7, 1.3, 9))
        where = np.interp(np.linspace(0, 8, n), np.arange(9), (knots - knots[0]) / (knots[-1] - knots[0]) * (n - 1))
        return np.stack([np.interp(where, np.arange(n), ch) for ch in x]).astype(np.float32)

    def __getitem__(self, i):
        if self.rng is None:
            info = torch.utils.data.get_worker_info()
            self.rng = np.random.default_rng(info.seed if info else 0)
        rot = random_rotation(self.rng)
        x = self.x[i].reshape(2, 3, -1)
        x = np.stack([(rot[:, :, None] * part[None]).sum(1) for part in x]).reshape(6, -1)
        x = self.warp(x)
        x += 0.05 * self.rng.standard_normal(x.shape, dtype=np.float32)
        frames = np.lib.stride_tricks.sliding_window_view(x, 256, axis=1)[:, ::20]
        spec = np.abs(np.fft.rfft(frames * self.window, axis=-1))[..., :64]
        return np.log1p(spec).astype(np.float32), self.y[i]


class SpecNet(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(6, 12, 5, stride=(6, 3)),
            nn.ReLU(),
            nn.Conv2d(12, 24, 3, stride=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(96, classes),
        )

    def forward(self, x):
        return self.net(x)


def get_args():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--iterations", type=int, default=1500)
    p.add_argument("--batch-size", type=int, default=24)
    p.add_argument("--num-workers", type=int, default=1)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--log-every", type=int, default=100)
    p.add_argument("--fixed", action="store_true")
    return p.parse_args()


def forever(loader):
    while True:
        yield from loader


def main():
    args = get_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.manual_seed(0)
    x, y = simulate(1200, 1600, 8)
    workers = 2 if args.fixed else args.num_workers
    loader = DataLoader(
        Gestures(x, y),
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=workers,
        drop_last=True,
        persistent_workers=True,
        prefetch_factor=4,
    )
    model = SpecNet(8)
    opt = torch.optim.RMSprop(model.parameters(), lr=args.lr)
    loss_fn = nn.CrossEntropyLoss()
    it = forever(loader)
    t0 = time.time()
    step = 0
    while step < args.iterations:
        spec, target = next(it)
        loss = loss_fn(model(spec), target)
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
        if step % args.log_every == 0:
            log.info("iteration %d loss %.4f", step, loss.item())
    print(f"{step} steps in {time.time() - t0:.1f} s")


if __name__ == "__main__":
    main()
