"""Behaviour cloning for a 7-DoF arm: many proprioceptive channels -> joint command."""

import argparse
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

CHANNELS = {
    "q": 7,
    "dq": 7,
    "ddq": 7,
    "torque": 7,
    "torque_ext": 7,
    "motor_temp": 7,
    "ee_pos": 3,
    "ee_rot": 4,
    "ee_vel": 6,
    "wrench": 6,
    "gripper": 2,
    "gripper_force": 2,
    "imu_acc": 3,
    "imu_gyro": 3,
    "target_pos": 3,
    "target_rot": 4,
}


class Episodes(Dataset):
    def __init__(self, n=6_000, hist=4):
        rng = np.random.default_rng(1)
        self.arrays = {k: rng.standard_normal((n, hist, d), dtype=np.float32) for k, d in CHANNELS.items()}
        w = rng.standard_normal((7, 7)).astype(np.float32)
        self.action = np.tanh(self.arrays["q"][:, -1] @ w)

    def __len__(self):
        return len(self.action)

    def __getitem__(self, i):
        obs = {k: a[i] for k, a in self.arrays.items()}
        obs["action"] = self.action[i]
        return obs


def keep_steps(samples):
    # one dict of tensors per step: the policy picks what it wants
    return [{k: torch.from_numpy(v.copy()) for k, v in s.items()} for s in samples]


def pack(samples):
    obs = np.stack([np.concatenate([s[k].ravel() for k in CHANNELS]) for s in samples])
    return torch.from_numpy(obs), torch.from_numpy(np.stack([s["action"] for s in samples]))


class Policy(nn.Module):
    def __init__(self, hist=4):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(sum(CHANNELS.values()) * hist, 256),
            nn.ELU(),
            nn.Linear(256, 256),
            nn.ELU(),
            nn.Linear(256, 7),
            nn.Tanh(),
        )

    def forward(self, obs):
        return self.net(obs)


class Trainer:
    def __init__(self, args):
        self.args = args
        self.loader = DataLoader(
            Episodes(),
            batch_size=args.batch_size,
            shuffle=True,
            num_workers=2,
            drop_last=True,
            persistent_workers=True,
            collate_fn=pack if args.fixed else keep_steps,
        )
        self.policy = Policy()
        self.opt = torch.optim.Adam(self.policy.parameters(), lr=3e-4)

    def to_input(self, batch):
        if self.args.fixed:
            return batch
        obs = torch.stack([torch.cat([s[k].flatten() for k in CHANNELS]) for s in batch])
        return obs, torch.stack([s["action"] for s in batch])

    def fit(self):
        step, t0 = 0, time.time()
        for epoch in range(self.args.epochs):
            for batch in self.loader:
                obs, act = self.to_input(batch)
                loss = nn.functional.mse_loss(self.policy(obs), act)
                self.opt.zero_grad()
                loss.backward()
                self.opt.step()
                step += 1
                if step % 100 == 0:
                    print(f"step {step:6d}  loss {loss.item():.4f}  {step / (time.time() - t0):.1f} it/s", flush=True)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--batch-size", type=int, default=24)
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--fixed", action="store_true")
    torch.set_num_threads(1)
    Trainer(ap.parse_args()).fit()
