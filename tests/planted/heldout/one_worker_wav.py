"""Audio in 16-bit files, resampled in a single worker while a core idles."""

import sys
import wave
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from stoker.sim import Device


class Clips(Dataset):
    def __init__(self, root):
        root.mkdir(exist_ok=True)
        self.names = []
        for n in range(400):
            path = root / f"clip{n}.wav"
            if not path.exists():
                with wave.open(str(path), "wb") as file:
                    file.setnchannels(1)
                    file.setsampwidth(2)
                    file.setframerate(16000)
                    file.writeframes(np.random.default_rng(n).integers(-9000, 9000, 32000, dtype=np.int16).tobytes())
            self.names.append(path)

    def __len__(self):
        return 400

    def __getitem__(self, n):
        with wave.open(str(self.names[n]), "rb") as file:
            sound = np.frombuffer(file.readframes(32000), dtype=np.int16).astype(np.float32)
        speed = np.random.uniform(0.9, 1.1)
        for _ in range(4):
            sound = np.interp(np.arange(0, len(sound) - 1, speed), np.arange(len(sound)), sound)
        return torch.from_numpy(sound[:16000].astype(np.float32))


def main(root):
    loader = DataLoader(Clips(root), batch_size=10, shuffle=True, num_workers=1, persistent_workers=True)
    model = torch.nn.Conv1d(1, 4, 64, stride=32)
    optimizer = torch.optim.Adam(model.parameters())
    device = Device(forward=0.006, backward=0.010, optimizer=0.002)
    device.place(model, optimizer)
    for epoch in range(30):
        for sound in loader:
            loss = model(sound.to(device, non_blocking=True)[:, None]).abs().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main(Path(sys.argv[1]) / "clips")
