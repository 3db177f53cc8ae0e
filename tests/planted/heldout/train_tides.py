"""Sea level forecast from tide gauges, air pressure and wind: 6 hours ahead from the last 72 hours."""

import argparse
import os
import tempfile
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, random_split

PAST, AHEAD = 72, 6


def write_archive(folder, stations, hours, seed):
    rng = np.random.default_rng(seed)
    t = np.arange(hours, dtype=np.float32)
    phase = rng.uniform(0, 6.28, (stations, 1)).astype(np.float32)
    level = np.sin(t * 0.5059 + phase) + 0.3 * np.sin(t * 0.2625 + 2 * phase)
    pressure = np.cumsum(rng.standard_normal((stations, hours), dtype=np.float32), 1) * 0.02
    wind = rng.standard_normal((stations, hours, 2), dtype=np.float32)
    level = level - 0.1 * pressure + 0.05 * wind[..., 0]
    for name, a in (("level", level), ("pressure", pressure), ("wind", wind)):
        np.save(os.path.join(folder, name + ".npy"), a.astype(np.float32))


class TideWindows(Dataset):
    def __init__(self, folder):
        self.level = np.load(os.path.join(folder, "level.npy"), mmap_mode="r")
        self.pressure = np.load(os.path.join(folder, "pressure.npy"), mmap_mode="r")
        self.wind = np.load(os.path.join(folder, "wind.npy"), mmap_mode="r")
        self.stations, hours = self.level.shape
        self.per_station = hours - PAST - AHEAD

    def __len__(self):
        return self.stations * self.per_station

    def __getitem__(self, i):
        s, t = divmod(i, self.per_station)
        lev = self.level[s, t : t + PAST]
        mean = lev[-24:].mean()
        x = np.concatenate([lev - mean, self.pressure[s, t : t + PAST], self.wind[s, t : t + PAST].ravel()])
        y = self.level[s, t + PAST : t + PAST + AHEAD] - mean
        return torch.from_numpy(x), torch.from_numpy(np.asarray(y))


class TideWindowsByList(TideWindows):
    def __getitems__(self, idx):
        s, t = np.divmod(np.asarray(idx), self.per_station)
        back = t[:, None] + np.arange(PAST)
        lev = np.asarray(self.level)[s[:, None], back]
        mean = lev[:, -24:].mean(1, keepdims=True)
        prs = np.asarray(self.pressure)[s[:, None], back]
        wnd = np.asarray(self.wind)[s[:, None], back].reshape(len(s), -1)
        y = np.asarray(self.level)[s[:, None], t[:, None] + PAST + np.arange(AHEAD)] - mean
        return torch.from_numpy(np.concatenate([lev - mean, prs, wnd], 1)), torch.from_numpy(y)


def keep(batch):
    return batch


def make_model():
    return nn.Sequential(nn.Linear(PAST * 4, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, AHEAD))


@torch.no_grad()
def score(model, loader, limit):
    model.eval()
    total = n = 0
    for k, (x, y) in enumerate(loader):
        if k == limit:
            break
        total += nn.functional.l1_loss(model(x), y, reduction="sum").item()
        n += y.numel()
    model.train()
    return total / max(n, 1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=7)
    ap.add_argument("--batch", type=int, default=512)
    ap.add_argument("--stations", type=int, default=40)
    ap.add_argument("--stop-after", type=int, default=0)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(3)

    with tempfile.TemporaryDirectory() as folder:
        write_archive(folder, args.stations, 5078, 3)
        ds = TideWindowsByList(folder) if args.fixed else TideWindows(folder)
        val_n = len(ds) // 20
        train, val = random_split(ds, [len(ds) - val_n, val_n])
        extra = {"collate_fn": keep} if args.fixed else {}
        loader = DataLoader(train, batch_size=args.batch, shuffle=True, drop_last=True, **extra)
        val_loader = DataLoader(val, batch_size=args.batch, **extra)

        model = make_model()
        opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
        sched = torch.optim.lr_scheduler.OneCycleLR(opt, 4e-3, total_steps=args.epochs * len(loader) + 1)
        steps, began = 0, time.perf_counter()
        for epoch in range(args.epochs):
            running = torch.zeros(())
            for x, y in loader:
                loss = nn.functional.smooth_l1_loss(model(x), y)
                opt.zero_grad(set_to_none=True)
                loss.backward()
                opt.step()
                sched.step()
                running += loss.detach()
                steps += 1
                if args.stop_after and steps >= args.stop_after:
                    break
            print(f"epoch {epoch}: loss {running.item() / len(loader):.4f}  val mae {score(model, val_loader, 5):.4f}")
            if args.stop_after and steps >= args.stop_after:
                break
        print(f"{steps} steps in {time.perf_counter() - began:.1f} s")


if __name__ == "__main__":
    main()
