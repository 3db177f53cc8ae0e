"""Lidar object classes from bird's-eye voxel grids (accelerator simulated: 8 ms forward, 10 ms backward)."""

import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stoker import sim

FOLDER = Path("data_lidar_objects")
CLOUDS, POINTS, GRID = 120, 64_000, 32


def drive():
    path = FOLDER / "clouds.npy"
    if not path.exists():
        FOLDER.mkdir(exist_ok=True)
        np.save(path, np.random.default_rng(0).normal(0, 12, (CLOUDS, POINTS, 3)).astype(np.float32))
    return np.load(path, mmap_mode="r")


class Voxels(Dataset):
    def __init__(self, per_cloud=8):
        self.clouds, self.per_cloud = drive(), per_cloud

    def __len__(self):
        return CLOUDS * self.per_cloud

    def __getitem__(self, i):
        rng = np.random.default_rng(torch.randint(0, 2**31, ()).item())
        x, y, z = np.array(self.clouds[i % CLOUDS]).T
        angle, scale = rng.uniform(0, 2 * np.pi), rng.uniform(0.9, 1.1)
        u = scale * (np.cos(angle) * x - np.sin(angle) * y) + rng.normal(0, 0.02, POINTS)
        v = scale * (np.sin(angle) * x + np.cos(angle) * y) + rng.normal(0, 0.02, POINTS)
        w = z + rng.normal(0, 0.02, POINTS)
        keep = rng.random(POINTS) > 0.1
        cell = [np.clip(((c[keep] + 32) / 64 * GRID).astype(np.int64), 0, GRID - 1) for c in (u, v, w)]
        flat = (cell[0] * GRID + cell[1]) * GRID + cell[2]
        grid = np.bincount(flat, minlength=GRID**3).reshape(GRID, GRID, GRID)
        bev = np.stack([grid.sum(2), grid.max(2), grid.argmax(2)]).astype(np.float32)
        return torch.from_numpy(np.log1p(bev)), i % 5


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(3 * 64, 5))

    def forward(self, x):
        return self.net(x)


def main():
    torch.manual_seed(0)
    device = sim.Device(forward=8e-3, backward=10e-3, optimizer=1e-3)
    model = Tiny()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    model = device.place(model, optimizer)
    loader = DataLoader(Voxels(), batch_size=8, shuffle=True, num_workers=1, prefetch_factor=4, persistent_workers=True)
    for epoch in range(3):
        t0 = time.perf_counter()
        losses = []
        for bev, kind in loader:
            bev, kind = bev.to(device, non_blocking=True), kind.to(device, non_blocking=True)
            loss = nn.functional.cross_entropy(model(bev), kind)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        print(f"epoch {epoch} loss {torch.stack(losses).mean().item():.4f}")
        print(f"epoch_seconds {time.perf_counter() - t0:.3f}", flush=True)


if __name__ == "__main__":
    main()
