"""Wake word classifier: MFCC + pitch track, normalised per speaker."""

import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


@dataclass
class Settings:
    root: Path = Path("data_wake_words")
    speakers: int = 150
    per_speaker: int = 8
    rate: int = 16000
    window: int = 512
    hop: int = 160
    mels: int = 40
    words: int = 10
    batch: int = 16
    epochs: int = 3
    lags: list = field(default_factory=lambda: list(range(40, 200, 16)))


def corpus(cfg):
    path = cfg.root / "wav.npy"
    if not path.exists():
        cfg.root.mkdir(exist_ok=True)
        rng = np.random.default_rng(0)
        np.save(path, rng.integers(-8000, 8000, (cfg.speakers * cfg.per_speaker, cfg.rate), dtype=np.int16))
    return np.load(path, mmap_mode="r")


class Frontend:
    def __init__(self, cfg):
        self.cfg = cfg
        self.taper = np.hanning(cfg.window).astype(np.float32)
        bins = cfg.window // 2 + 1
        edges = np.linspace(0, bins - 1, cfg.mels + 2)
        up = (np.arange(bins)[:, None] - edges[None, :-2]) / np.diff(edges)[:-1]
        down = (edges[None, 2:] - np.arange(bins)[:, None]) / np.diff(edges)[1:]
        self.bank = np.clip(np.minimum(up, down), 0, None).astype(np.float32)

    def __call__(self, wave):
        c = self.cfg
        frames = np.lib.stride_tricks.sliding_window_view(wave, c.window)[:: c.hop] * self.taper
        mel = np.log((np.abs(np.fft.rfft(frames)) ** 2).astype(np.float32) @ self.bank + 1e-6)
        pitch = np.stack([(frames[:, lag:] * frames[:, :-lag]).mean(1) for lag in c.lags], 1)
        return np.concatenate([mel, pitch], 1).astype(np.float32)


class Utterances(Dataset):
    def __init__(self, cfg):
        self.cfg, self.waves, self.frontend = cfg, corpus(cfg), Frontend(cfg)

    def __len__(self):
        return len(self.waves)

    def _features(self, i):
        return self.frontend(self.waves[i].astype(np.float32) / 32768)

    def __getitem__(self, i):
        first = i - i % self.cfg.per_speaker
        enrolment = np.concatenate([self._features(j) for j in range(first, first + 2)])
        x = (self._features(i) - enrolment.mean(0)) / (enrolment.std(0) + 1e-5)
        return torch.from_numpy(x), i % self.cfg.words


def main():
    cfg = Settings()
    torch.manual_seed(0)
    data = Utterances(cfg)
    loader = DataLoader(data, cfg.batch, shuffle=True, num_workers=2, persistent_workers=True)
    width = cfg.mels + len(cfg.lags)
    model = nn.Sequential(
        nn.Conv1d(width, 48, 5, 2),
        nn.ReLU(),
        nn.Conv1d(48, 48, 5, 2),
        nn.ReLU(),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(48, cfg.words),
    )
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(cfg.epochs):
        t0 = time.perf_counter()
        total = torch.zeros(())
        for x, word in loader:
            loss = nn.functional.cross_entropy(model(x.transpose(1, 2)), word)
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.detach()
        print(f"epoch {epoch} xent {total.item() / len(loader):.4f}")
        print(f"epoch_seconds {time.perf_counter() - t0:.3f}", flush=True)


if __name__ == "__main__":
    main()
