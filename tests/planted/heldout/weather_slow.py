"""Nowcasting from npz day files, one file per day, 48 frames each."""

import functools, glob, os, random, tempfile, time
import numpy as np, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

ROOT = os.path.join(tempfile.gettempdir(), "weather_days")
DAYS, FRAMES, S = 30, 48, 64


def generate():
    if len(glob.glob(ROOT + "/*.npz")) == DAYS:
        return
    os.makedirs(ROOT, exist_ok=True)
    for d in range(DAYS):
        r = np.random.default_rng(d)
        x = np.cumsum(r.integers(-3, 4, (FRAMES, 3, S, S)), 0).astype(np.int16)
        np.savez_compressed(f"{ROOT}/day{d:03d}.npz", frames=x, rain=r.random(FRAMES).astype(np.float32))


class Days(Dataset):
    def __init__(self, root):
        self.files = sorted(glob.glob(root + "/*.npz"))
        self._day, self._data = None, None

    def __len__(self):
        return len(self.files) * FRAMES

    def _load(self, day):
        if day != self._day:
            with np.load(self.files[day]) as z:
                self._data = (z["frames"], z["rain"])
            self._day = day
        return self._data

    def __getitem__(self, i):
        frames, rain = self._load(i // FRAMES)
        return torch.from_numpy(frames[i % FRAMES].astype(np.float32) / 32), rain[i % FRAMES]


def main():
    generate()
    torch.manual_seed(0)
    random.seed(0)
    ds = Days(ROOT)
    loader = DataLoader(ds, batch_size=12, shuffle=True, num_workers=0)
    net = nn.Sequential(
        nn.Conv2d(3, 32, 5, 2, 2),
        nn.GELU(),
        nn.Conv2d(32, 64, 5, 2, 2),
        nn.GELU(),
        nn.AdaptiveMaxPool2d(2),
        nn.Flatten(),
        nn.Linear(256, 1),
    )
    opt = torch.optim.RMSprop(net.parameters(), 1e-4)
    done, t0 = 0, time.time()
    for epoch in range(3):
        for x, y in loader:
            loss = nn.functional.l1_loss(net(x).squeeze(-1), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            done += 1
            if done % 20 == 0:
                print(epoch, done, float(loss.detach()), f"{done / (time.time() - t0):.2f} steps/s", flush=True)


if __name__ == "__main__":
    main()
