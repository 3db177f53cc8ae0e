"""Bird song classifier. Clips are turned into denoised log-mel frames by the loader's workers."""

import sys
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

FIXED = "--fixed" in sys.argv
THREADS_PER_WORKER = 1 if FIXED else 16  # what the big node has per worker
CLIPS, SAMPLES, CLASSES, EPOCHS = 800, 12_000, 12, 500
BANDS = 64
TIME_LIMIT = 90


class Clips(Dataset):
    def __init__(self):
        g = torch.Generator().manual_seed(1)
        self.pitch = torch.randint(0, CLASSES, (CLIPS,), generator=g)
        t = torch.arange(SAMPLES) / 16_000
        tones = torch.sin(2 * torch.pi * (400 + 250 * torch.arange(CLASSES))[:, None] * t)
        self.tones = (tones * 8000).to(torch.int16)
        self.window = torch.hann_window(512)
        self.bank = torch.rand(BANDS, 257, generator=g) ** 8

    def __len__(self):
        return CLIPS

    def __getitem__(self, i):
        label = int(self.pitch[i])
        wave = self.tones[label].float() / 32768
        wave = wave.roll(int(torch.randint(SAMPLES, ()))) + 0.05 * torch.randn(SAMPLES)
        spec = torch.stft(wave, 512, 128, window=self.window, return_complex=True).abs()
        mel = torch.log1p(self.bank @ spec)
        # three rounds of denoising: subtract what a frame shares with the ones most like it
        frames = F.layer_norm(mel.T, (BANDS,))
        for _ in range(3):
            alike = torch.softmax(frames @ frames.T / BANDS**0.5, 1)
            frames = F.layer_norm(frames - 0.3 * alike @ frames, (BANDS,))
        return frames.T, label


def init_worker(worker_id):
    torch.set_num_threads(THREADS_PER_WORKER)


def build():
    return nn.Sequential(
        nn.Conv1d(BANDS, 32, 5, stride=2),
        nn.ReLU(),
        nn.Conv1d(32, 32, 5, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(32, CLASSES),
    )


if __name__ == "__main__":
    torch.set_num_threads(1)  # the model is tiny
    torch.manual_seed(0)
    loader = DataLoader(
        Clips(),
        batch_size=8,
        shuffle=True,
        num_workers=2,
        persistent_workers=True,
        prefetch_factor=4,
        worker_init_fn=init_worker,
        drop_last=True,
    )
    net = build()
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    start = time.time()
    for epoch in range(EPOCHS):
        t0, right, seen = time.time(), 0, 0
        for spec, label in loader:
            logits = net(spec)
            loss = F.cross_entropy(logits, label)
            opt.zero_grad()
            loss.backward()
            opt.step()
            right += (logits.argmax(1) == label).sum()
            seen += len(label)
        took = time.time() - t0
        print(
            f"[{epoch:02d}] loss={loss:.3f} acc={right / seen:.2f} {took / len(loader) * 1e3:.1f} ms/batch", flush=True
        )
        if time.time() - start > TIME_LIMIT:
            break
