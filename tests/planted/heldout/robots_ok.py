"""Behaviour cloning on robot episodes; a sample is a window of observations, every sensor its own tensor."""

import sys, time
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SENSORS = [f"s{i:02d}" for i in range(40)]
HORIZON = 8
STEPS = 450


class Episodes(Dataset):
    def __init__(self, n=20000):
        g = torch.Generator().manual_seed(3)
        self.obs = torch.randn(n + HORIZON, len(SENSORS), 6, generator=g)
        self.act = torch.randn(n + HORIZON, 7, generator=g)
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return i


class Window:
    """collate: cut the windows out for a batch of start positions"""

    def __init__(self, ds):
        self.ds = ds

    def __call__(self, starts):
        idx = torch.tensor(starts)[:, None] + torch.arange(HORIZON)
        obs, act = self.ds.obs[idx], self.ds.act[idx]  # B,H,S,6
        return {"frames": obs, "action": act[:, -1].clone()}


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(len(SENSORS) * 6, 128, batch_first=True)
        self.head = nn.Linear(128, 7)

    def forward(self, frames):
        x = frames.flatten(2)
        return self.head(self.rnn(x)[0][:, -1])


def main():
    torch.manual_seed(0)
    ds = Episodes()
    loader = DataLoader(
        ds, batch_size=32, shuffle=True, num_workers=2, collate_fn=Window(ds), persistent_workers=True, drop_last=True
    )
    policy = Policy()
    opt = torch.optim.Adam(policy.parameters(), 1e-3)
    it, step, t0 = iter(loader), 0, time.time()
    while step < STEPS:
        try:
            b = next(it)
        except StopIteration:
            it = iter(loader)
            continue
        loss = nn.functional.smooth_l1_loss(policy(b["frames"]), b["action"])
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
        if step % 20 == 0:
            print(f"{step}: {loss.item():.3f}  {step / (time.time() - t0):.1f} steps/s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
