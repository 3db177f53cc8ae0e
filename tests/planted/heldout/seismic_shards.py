"""P-wave arrival picking on 3-component seismograms; waveforms come as .pt shards of a few hundred traces each."""

import argparse
import os
import shutil
import tempfile
import time

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset, Sampler

SHARD, LEN = 512, 600


def write_shards(folder, n_shards):
    g = torch.Generator().manual_seed(0)
    noise = torch.randn(SHARD, 3, LEN, generator=g) * 0.2
    t = torch.arange(LEN)
    for s in range(n_shards):
        onset = torch.randint(50, LEN - 100, (SHARD,), generator=g)
        d = (t[None] - onset[:, None]).clamp(min=0)
        wave = (torch.sin(d * 0.4) * torch.exp(-d / 60))[:, None, :]
        torch.save({"x": wave + noise.roll(7 * s, 2), "onset": onset}, os.path.join(folder, f"shard_{s:03d}.pt"))


class ShardedTraces(Dataset):
    """Keeps the shard that was used last."""

    def __init__(self, folder):
        self.files = sorted(os.path.join(folder, f) for f in os.listdir(folder) if f.startswith("shard_"))
        self.open_id, self.open_shard = None, None

    def __len__(self):
        return len(self.files) * SHARD

    def __getitem__(self, i):
        sid, row = divmod(i, SHARD)
        if sid != self.open_id:
            self.open_shard = torch.load(self.files[sid])
            self.open_id = sid
        return self.open_shard["x"][row].clone(), self.open_shard["onset"][row].clone()


class ShardOrder(Sampler):
    """--fixed: shards in random order, traces in random order inside a shard."""

    def __init__(self, n_shards):
        self.n_shards = n_shards

    def __len__(self):
        return self.n_shards * SHARD

    def __iter__(self):
        for s in torch.randperm(self.n_shards).tolist():
            for r in torch.randperm(SHARD).tolist():
                yield s * SHARD + r


class Picker(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(3, 16, 7, stride=2, padding=3),
            nn.ReLU(),
            nn.Conv1d(16, 16, 7, stride=2, padding=3),
            nn.ReLU(),
            nn.Conv1d(16, 1, 7, padding=3),
        )

    def forward(self, x):
        return self.net(x).squeeze(1)


def fit(args, folder):
    ds = ShardedTraces(folder)
    order = {"sampler": ShardOrder(len(ds.files))} if args.fixed else {"shuffle": True}
    loader = DataLoader(ds, batch_size=args.batch, num_workers=2, persistent_workers=True, **order)
    net = Picker()
    opt = torch.optim.RMSprop(net.parameters(), lr=1e-3)
    step, start = 0, time.time()
    while True:
        for x, onset in loader:
            loss = nn.functional.cross_entropy(net(x), onset // 4)
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            if step % 40 == 0:
                print(
                    f"step {step} loss {loss.item():.3f} {(time.time() - start) / step * 1e3:.0f} ms/step", flush=True
                )
            if step == args.steps:
                return


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--folder")
    ap.add_argument("--shards", type=int, default=40)
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--steps", type=int, default=1400)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.set_num_threads(1)
    folder = args.folder or tempfile.mkdtemp(prefix="seis_")
    try:
        if not os.listdir(folder):
            write_shards(folder, args.shards)
        fit(args, folder)
    finally:
        if not args.folder:
            shutil.rmtree(folder, ignore_errors=True)
