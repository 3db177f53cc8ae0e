"""Statistical downscaling: coarse patch -> fine patch, from daily files of hourly fields.

One file per day, float32, [hour, variable, lat, lon], no header.
"""

import argparse
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

HOURS, VARS, LAT, LON = 24, 4, 128, 256
PATCH = 32


def write_days(folder, days):
    rng = np.random.default_rng(0)
    base = rng.standard_normal((HOURS, VARS, LAT, LON), dtype=np.float32)
    ramp = np.linspace(-1, 1, LON, dtype=np.float32)
    for d in range(days):
        (base * (0.5 + 0.02 * d) + ramp).tofile(folder / f"day{d:03d}.f32")


class WeatherPatches(Dataset):
    def __init__(self, folder, length, mapped):
        self.files = sorted(folder.glob("*.f32"))
        self.length, self.mapped = length, mapped

    def __len__(self):
        return self.length

    def load_day(self, path):
        shape = (HOURS, VARS, LAT, LON)
        if self.mapped:
            return np.memmap(path, np.float32, "r", shape=shape)
        return np.fromfile(path, np.float32).reshape(shape)

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(int(torch.randint(0, 2**31, ())))
        hour, top, left = (int(torch.randint(0, m, (), generator=g)) for m in (HOURS, LAT - PATCH, LON - PATCH))
        day = self.load_day(self.files[i % len(self.files)])
        fine = torch.from_numpy(np.array(day[hour, :, top : top + PATCH, left : left + PATCH]))
        return {"fine": fine, "hour": hour, "lat": top / LAT}


class Downscaler(nn.Module):
    def __init__(self, w=16):
        super().__init__()
        self.inp = nn.Conv2d(VARS + 2, w, 3, padding=1)
        self.mid = nn.ModuleList(nn.Conv2d(w, w, 3, padding=1) for _ in range(2))
        self.up = nn.Sequential(nn.Conv2d(w, VARS * 16, 1), nn.PixelShuffle(4))

    def forward(self, coarse, hour, lat):
        cond = torch.stack([hour.float() / HOURS, lat.float()], 1)[:, :, None, None].expand(-1, -1, *coarse.shape[2:])
        h = self.inp(torch.cat([coarse, cond], 1)).relu()
        for m in self.mid:
            h = h + m(h).relu()
        return self.up(h)


def cycle(loader, model, opt, state, limit):
    for b in loader:
        coarse = nn.functional.avg_pool2d(b["fine"], 4)
        pred = model(coarse, b["hour"], b["lat"])
        loss = nn.functional.l1_loss(pred, b["fine"])
        loss.backward()
        if (state["step"] + 1) % 2 == 0:
            opt.step()
            opt.zero_grad()
        state["step"] += 1
        state["loss"] = 0.98 * state["loss"] + 0.02 * loss.item()
        if state["step"] == limit:
            return


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--days", type=int, default=18)
    p.add_argument("--patches", type=int, default=3200)
    p.add_argument("--epochs", type=int, default=8)
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--workers", type=int, default=2)
    p.add_argument("--limit", type=int, default=0)
    p.add_argument("--fixed", action="store_true")
    a = p.parse_args()
    torch.manual_seed(9)
    folder = Path(tempfile.mkdtemp(prefix="era"))
    try:
        write_days(folder, a.days)
        ds = WeatherPatches(folder, a.patches, a.fixed)
        loader = DataLoader(ds, a.batch, shuffle=True, num_workers=a.workers, persistent_workers=a.workers > 0)
        model = Downscaler()
        opt = torch.optim.Adam(model.parameters(), lr=1e-3)
        state = {"step": 0, "loss": 1.0}
        t0 = time.time()
        for e in range(a.epochs):
            cycle(loader, model, opt, state, a.limit)
            print(f"epoch {e}: smoothed loss {state['loss']:.4f}", flush=True)
            if state["step"] == a.limit:
                break
        print(f"{state['step']} steps in {time.time() - t0:.1f} s")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
