"""Behaviour cloning for a two-finger gripper. An epoch goes over every task; tasks are visited one after the other."""

import json
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

HERE = Path("data_gripper_clone")
TASKS = ["pick", "place", "stack", "pour", "wipe", "push", "insert", "turn"]
DEMOS = 768


def record_demos():
    HERE.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    if not (HERE / "calibration.json").exists():
        grid = [
            {"joint": int(j), "encoder": float(e), "angle": float(a)}
            for j in range(6)
            for e, a in zip(np.linspace(0, 1, 20000), np.sort(rng.random(20000)))
        ]
        (HERE / "calibration.json").write_text(json.dumps(grid))
    for t in TASKS:
        f = HERE / f"{t}.npz"
        if not f.exists():
            np.savez(
                f,
                encoders=rng.random((DEMOS, 6)).astype(np.float32),
                camera=rng.integers(0, 255, (DEMOS, 3, 32, 32), dtype=np.uint8),
                action=rng.normal(size=(DEMOS, 7)).astype(np.float32),
            )


class Demos(Dataset):
    def __init__(self):
        self.tables = {}
        for t in TASKS:
            with np.load(HERE / f"{t}.npz") as z:
                self.tables[t] = {k: z[k] for k in z.files}
        self.curves = None  # read by whoever needs it first

    def _calibration(self):
        if self.curves is None:
            rows = json.loads((HERE / "calibration.json").read_text())
            self.curves = []
            for j in range(6):
                pairs = sorted((r["encoder"], r["angle"]) for r in rows if r["joint"] == j)
                self.curves.append(tuple(np.array(side) for side in zip(*pairs)))
        return self.curves

    def __len__(self):
        return DEMOS * len(TASKS)

    def __getitem__(self, index):
        task, i = divmod(index, DEMOS)
        d = self.tables[TASKS[task]]
        angles = np.array(
            [np.interp(d["encoders"][i, j], *c) for j, c in enumerate(self._calibration())], dtype=np.float32
        )
        return torch.from_numpy(d["camera"][i]), torch.from_numpy(angles), torch.from_numpy(d["action"][i])


class OneTask(Sampler):
    def __init__(self):
        self.task = 0

    def __len__(self):
        return DEMOS

    def __iter__(self):
        yield from (torch.randperm(DEMOS) + self.task * DEMOS).tolist()


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.eye = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, 2, 1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * 64, 64),
        )
        self.head = nn.Sequential(nn.Linear(70, 64), nn.ReLU(), nn.Linear(64, 7))

    def forward(self, camera, angles):
        return self.head(torch.cat([self.eye(camera.float() / 255), angles], 1))


def main():
    torch.manual_seed(0)
    record_demos()
    turn = OneTask()
    policy = Policy()
    opt = torch.optim.Adam(policy.parameters(), lr=3e-4)
    loader = DataLoader(Demos(), batch_size=32, sampler=turn, num_workers=2)
    for epoch in range(3):
        t0 = time.perf_counter()
        for turn.task, task in enumerate(TASKS):
            errors = []
            for camera, angles, action in loader:
                loss = nn.functional.mse_loss(policy(camera, angles), action)
                opt.zero_grad()
                loss.backward()
                opt.step()
                errors.append(loss.detach())
            print(f"  {epoch} {task:7s} {torch.stack(errors).mean().item():.4f}")
        print(f"epoch_seconds {time.perf_counter() - t0:.3f}", flush=True)


if __name__ == "__main__":
    main()
