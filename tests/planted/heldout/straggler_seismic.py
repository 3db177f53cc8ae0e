"""Earthquake picker, data parallel on two processes over gloo.

python straggler_seismic.py                                  (starts both ranks itself)
torchrun --nproc-per-node 2 straggler_seismic.py
"""

import argparse
import os
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

STATIONS, WINDOW = 640, 512


class Station(Dataset):
    """Traces on two mounts: the new stations on the local disk, the old ones on the archive, 1.5 ms away."""

    def __init__(self, numbers):
        rng = np.random.default_rng(9)
        self.numbers = numbers
        self.disk = rng.standard_normal((STATIONS, WINDOW), dtype=np.float32)

    def __len__(self):
        return len(self.numbers)

    def read(self, number):
        if number >= STATIONS // 2:
            time.sleep(1.5e-3)  # what a read of the archive takes
        return self.disk[number].copy()

    def __getitem__(self, i):
        number = int(self.numbers[i])
        trace, quake = self.read(number), number % 2
        trace[200:260] += quake * 3 * np.sin(np.arange(60) / 3)
        return torch.from_numpy(trace / trace.std())[None], quake


def my_stations(rank, world, fixed):
    everything = np.arange(STATIONS)
    return everything[rank::world] if fixed else np.array_split(everything, world)[rank]


def work(rank, world, args):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.manual_seed(rank)
    numbers = my_stations(rank, world, args.fixed)
    loader = DataLoader(Station(numbers), batch_size=args.batch_size, shuffle=True, drop_last=True)
    net = nn.Sequential(
        nn.Conv1d(1, 8, 15, 4),
        nn.ReLU(),
        nn.Conv1d(8, 16, 7, 4),
        nn.ReLU(),
        nn.AdaptiveAvgPool1d(4),
        nn.Flatten(),
        nn.Linear(64, 2),
    )
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    began, step = time.time(), 0
    for epoch in range(args.epochs):
        t = time.time()
        for trace, quake in loader:
            loss = nn.functional.cross_entropy(model(trace), quake)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
        over = torch.tensor(float(time.time() - began > args.max_seconds))
        dist.all_reduce(over)  # so that all stop together
        if rank == 0:
            print(
                f"epoch {epoch} loss {loss.item():.4f}: {(time.time() - t) / len(loader) * 1e3:.1f} ms/step", flush=True
            )
        if over > 0:
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=2000)
    parser.add_argument("--max-seconds", type=float, default=85)
    parser.add_argument("--fixed", action="store_true", help="deal the stations out in turn")
    arguments = parser.parse_args()
    if "RANK" in os.environ:
        work(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), arguments)
    else:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(20000 + os.getpid() % 20000))
        mp.spawn(work, (2, arguments), nprocs=2)
