"""Waveforms become spectrograms by numpy in the data set, the same in every epoch."""

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from stoker.sim import Device


def spectrogram(wave, bins=256, hop=16):
    window = np.hanning(bins)
    columns = [np.abs(np.fft.rfft(window * wave[i : i + bins])) for i in range(0, len(wave) - bins, hop)]
    grid = np.log1p(np.stack(columns, axis=1))
    return ((grid - grid.mean()) / grid.std()).astype(np.float32)[:64, ::8]


class Speech(Dataset):
    def __init__(self):
        self.waves = np.random.default_rng(0).normal(size=(640, 8000)).astype(np.float32)

    def __getitem__(self, i):
        return spectrogram(self.waves[i]), i % 5

    def __len__(self):
        return len(self.waves)


if __name__ == "__main__":
    device = Device(forward=0.004, backward=0.009, optimizer=0.001)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(5))
    loader = DataLoader(Speech(), batch_size=16, shuffle=True, num_workers=2, persistent_workers=True)
    model(torch.zeros(1, *spectrogram(np.zeros(8000) + 1e-3 * np.arange(8000)).shape))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    device.place(model, optimizer)
    for epoch in range(25):
        for grids, labels in loader:
            optimizer.zero_grad()
            out = model(grids.to(device, non_blocking=True))
            torch.nn.functional.cross_entropy(out, labels.to(device, non_blocking=True)).backward()
            optimizer.step()
