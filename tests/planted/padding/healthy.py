"""Train a small transformer encoder on the CPU, on sentences of very different lengths."""

# A script as people write it: no torch.device, to the type checker, is what stands for one here.
# mypy: disable-error-code="call-overload, no-any-return, arg-type"
import argparse
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, Sampler


class Scale(NamedTuple):
    sentences: int
    longest: int
    batch: int
    width: int
    epochs: int


SCALES = {"small": Scale(1920, 96, 16, 64, 4), "large": Scale(1280, 200, 20, 48, 3)}


class Sentences(Dataset[torch.Tensor]):
    def __init__(self, path: Path, scale: Scale) -> None:
        if not path.exists():
            draw = random.Random(0)
            with path.open("w") as file:
                for _ in range(scale.sentences):
                    length = max(4, min(scale.longest, int(draw.expovariate(5 / scale.longest))))
                    file.write(" ".join(str(draw.randint(1, 499)) for _ in range(length)) + "\n")
        self.ids = [torch.tensor([int(word) for word in line.split()]) for line in path.read_text().splitlines()]
        self.longest = max(len(ids) for ids in self.ids)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.ids[index]


class ByLength(Sampler[list[int]]):
    """Batches of neighbours in length, in random order."""

    def __init__(self, data: Sentences, batch: int) -> None:
        order = sorted(range(len(data)), key=lambda i: len(data.ids[i]))
        self.batches = [order[i : i + batch] for i in range(0, len(order), batch)]

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[int]]:
        for i in torch.randperm(len(self.batches)).tolist():
            yield self.batches[i]


def join(sentences: list[torch.Tensor]) -> torch.Tensor:
    return nn.utils.rnn.pad_sequence(sentences, batch_first=True)


class Encoder(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(500, width, padding_idx=0)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        absent = ids == 0
        x = self.layers(self.embed(ids), src_key_padding_mask=absent)
        return self.head((x * ~absent[:, :, None]).sum(dim=1) / (~absent).sum(dim=1, keepdim=True))


def main(args: argparse.Namespace, root: Path) -> None:
    scale = SCALES[args.scale]
    torch.manual_seed(0)
    data = Sentences(root / "sentences.txt", scale)
    loader = DataLoader(data, batch_sampler=ByLength(data, scale.batch), collate_fn=join)
    model = Encoder(scale.width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step, began = 0, time.perf_counter()
    for epoch in range(args.epochs or scale.epochs):
        for ids in loader:
            if step >= args.steps:
                break
            loss = functional.cross_entropy(model(ids), ids[:, 0] % 2)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
        print(f"epoch {epoch} loss {loss.item():.3f}")
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
