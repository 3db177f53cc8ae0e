"""Train a recurrent model on two ranks with gloo; batches hold sequences of one length."""

# A script as people write it: no torch.device, to the type checker, is what stands for one here.
# mypy: disable-error-code="call-overload, no-any-return, arg-type"
import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import distributed, nn
from torch.multiprocessing.spawn import spawn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

RANKS = 2


class Scale(NamedTuple):
    batches: int
    shortest: int
    longest: int
    batch: int
    width: int
    epochs: int


SCALES = {"small": Scale(300, 10, 90, 8, 48, 2), "large": Scale(160, 16, 200, 16, 64, 2)}


class Batches(Dataset[torch.Tensor]):
    """Batches of sequences, from the shortest to the longest."""

    def __init__(self, scale: Scale) -> None:
        rng = np.random.default_rng(0)
        self.lengths = np.sort(rng.integers(scale.shortest, scale.longest, scale.batches))
        self.batch = scale.batch

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(index)
        return torch.rand(self.batch, int(self.lengths[index]), 8, generator=generator)


def share(count: int, rank: int, epoch: int) -> list[int]:
    order = np.random.default_rng(epoch).permutation(count // RANKS)
    return [RANKS * int(i) + rank for i in order]


class Model(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.memory = nn.GRU(8, width, batch_first=True)
        self.head = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.memory(x)[0][:, -1]).squeeze(1)


def work(rank: int, args: argparse.Namespace, scale: Scale, meeting: str) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS)
    model = nn.parallel.DistributedDataParallel(Model(scale.width))
    optimizer = torch.optim.Adam(model.parameters())
    data = Batches(scale)
    step, began = 0, time.perf_counter()
    for epoch in range(args.epochs or scale.epochs):
        for x in DataLoader(data, batch_size=None, sampler=share(len(data), rank, epoch)):
            if step >= args.steps:
                break
            loss = functional.mse_loss(model(x), x.mean(dim=(1, 2)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}")
    if rank == 0:
        print(f"{step} steps in {time.perf_counter() - began:.2f} s")
    distributed.destroy_process_group()


def main(args: argparse.Namespace, root: Path) -> None:
    meeting = root / f"meeting-{os.getpid()}"
    spawn(work, (args, SCALES[args.scale], str(meeting)), nprocs=RANKS)
    meeting.unlink(missing_ok=True)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", choices=["small", "large"], default="small")
    parser.add_argument("--steps", type=int, default=sys.maxsize, help="stop after this many optimizer steps")
    parser.add_argument("--epochs", type=int, default=None, help="passes over the data; the scale's own by default")
    parser.add_argument("--data", type=Path, default=None, help="where the data goes; a temporary directory by default")
    return parser.parse_args()


if __name__ == "__main__":
    options = parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        main(options, options.data or Path(scratch))
