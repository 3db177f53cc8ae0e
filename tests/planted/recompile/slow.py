"""Train a compiled sequence model on the CPU; sequences of one batch have one length."""

# A script as people write it: no torch.device, to the type checker, is what stands for one here.
# mypy: disable-error-code="call-overload, no-any-return, arg-type"
import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch._dynamo import config
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset


class Scale(NamedTuple):
    sequences: int
    shortest: int
    longest: int
    batch: int
    width: int
    steps: int


SCALES = {"small": Scale(3000, 40, 140, 16, 64, 400), "large": Scale(6000, 60, 240, 24, 96, 260)}


class Batches(Dataset[torch.Tensor]):
    """Each item is a batch of sequences of equal length; lengths differ from batch to batch."""

    def __init__(self, scale: Scale) -> None:
        rng = np.random.default_rng(0)
        self.lengths = rng.integers(scale.shortest, scale.longest, scale.steps)
        self.batch = scale.batch

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(index)
        return torch.randint(0, 100, (self.batch, int(self.lengths[index])), generator=generator)


class Model(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, width)
        self.layers = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.LayerNorm(width)
        )
        self.head = nn.Linear(width, 100)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for _ in range(3):
            x = x + self.layers(x)
        return self.head(x)


def main(args: argparse.Namespace, root: Path) -> None:
    scale = SCALES[args.scale]
    torch.manual_seed(0)
    config.recompile_limit = 256
    model = Model(scale.width)
    compiled = torch.compile(model, backend="aot_eager", dynamic=False)
    optimizer = torch.optim.Adam(model.parameters())
    loader = DataLoader(Batches(scale), batch_size=None, shuffle=True)
    step, began = 0, time.perf_counter()
    for _ in range(args.epochs or 1):
        for ids in loader:
            if step >= args.steps:
                break
            scores = compiled(ids[:, :-1])
            loss = functional.cross_entropy(scores.flatten(0, 1), ids[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 50 == 0:
                print(f"step {step} loss {loss.item():.3f}")
    print(f"{step} steps in {time.perf_counter() - began:.2f} s")


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
