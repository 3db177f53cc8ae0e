"""Bird calls: wav files -> log-mel -> CNN, with accelerate."""

import math, os, tempfile, time, wave
import numpy as np, torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, Dataset

DIR = os.path.join(tempfile.gettempdir(), "birdcalls")
SR, SEC, CLIPS = 16000, 4, 160


def synth():
    os.makedirs(DIR, exist_ok=True)
    for i in range(CLIPS):
        p = f"{DIR}/c{i:04d}.wav"
        if os.path.exists(p):
            continue
        r = np.random.default_rng(i)
        t = np.arange(SR * SEC) / SR
        y = 0.4 * np.sin(2 * np.pi * (800 + 300 * (i % 8)) * t * (1 + 0.05 * np.sin(3 * t))) + 0.1 * r.standard_normal(
            t.size
        )
        with wave.open(p, "wb") as w:
            w.setnchannels(1)
            w.setsampwidth(2)
            w.setframerate(SR)
            w.writeframes((y.clip(-1, 1) * 32000).astype("<i2").tobytes())


def mel_bank(n_fft=1024, n_mels=64):
    f = np.linspace(0, SR / 2, n_fft // 2 + 1)
    m = np.linspace(0, 2595 * math.log10(1 + SR / 2 / 700), n_mels + 2)
    hz = 700 * (10 ** (m / 2595) - 1)
    return np.stack(
        [
            np.clip(np.minimum((f - hz[k]) / (hz[k + 1] - hz[k]), (hz[k + 2] - f) / (hz[k + 2] - hz[k + 1])), 0, None)
            for k in range(n_mels)
        ]
    )


class Calls(Dataset):
    def __init__(self):
        self.bank = mel_bank()
        self.win = np.hanning(1024)

    def __len__(self):
        return CLIPS

    def features(self, i):
        with wave.open(f"{DIR}/c{i:04d}.wav") as w:
            y = np.frombuffer(w.readframes(w.getnframes()), "<i2") / 32768
        frames = np.lib.stride_tricks.sliding_window_view(y, 1024)[::128] * self.win
        spec = np.abs(np.fft.rfft(frames)) ** 2
        logmel = np.log(spec @ self.bank.T + 1e-6)
        return torch.from_numpy(((logmel - logmel.mean()) / logmel.std()).astype(np.float32).T[None, :, ::4].copy())

    def __getitem__(self, i):
        return self.features(i), i % 8


def main():
    synth()
    torch.manual_seed(0)
    acc = Accelerator(cpu=True)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, 2, 1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, 2, 1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 8),
    )
    opt = torch.optim.AdamW(net.parameters(), 2e-3)
    dl = DataLoader(Calls(), batch_size=8, shuffle=True)
    net, opt, dl = acc.prepare(net, opt, dl)
    t0, k = time.time(), 0
    for epoch in range(20):
        for x, y in dl:
            with acc.accumulate(net):
                loss = nn.functional.cross_entropy(net(x), y)
                acc.backward(loss)
                opt.step()
                opt.zero_grad()
            k += 1
        acc.print(f"{epoch} {loss.item():.3f} {k / (time.time() - t0):.2f} it/s", flush=True)


if __name__ == "__main__":
    main()
