"""A loop that counts on what its loaders promise: their lengths, their order, and where an error comes."""

# mypy: disable-error-code="misc"
import argparse
import time
from collections.abc import Iterator

import light  # type: ignore[import-not-found]  # beside the script
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

LENGTH, BATCH = 48, 4


class Numbers(Dataset[int]):
    def __init__(self, bad: int | None) -> None:
        self.bad = bad

    def __len__(self) -> int:
        return LENGTH * BATCH

    def __getitem__(self, index: int) -> int:
        time.sleep(0.001)
        if index == self.bad:
            raise ValueError(f"sample {index} is bad")
        return index


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        for index in range(first, LENGTH * BATCH, step):
            time.sleep(0.001)
            yield index


class Trainer:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        data: Dataset[int] = Stream() if args.shape == "stream" else Numbers(5 if args.shape == "bad" else None)
        self.loader = DataLoader(data, batch_size=BATCH, shuffle=args.shape != "stream", num_workers=args.workers)
        self.other = DataLoader(Numbers(None), batch_size=BATCH)
        self.model = nn.Linear(1, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.steps = 0

    def train(self, x: torch.Tensor) -> list[int]:
        self.optimizer.zero_grad()
        self.model(x.float()[:, None] / 1000).square().mean().backward()
        self.optimizer.step()
        time.sleep(0.02)
        self.steps += 1
        return [int(value) for value in x]

    def by_for(self) -> Iterator[int]:
        for x in self.loader:
            if self.args.steps is not None and self.steps >= self.args.steps:
                break
            yield from self.train(x)
            if self.args.shape == "check" and self.steps % 7 == 0:
                with torch.no_grad():
                    checked = sum(len(self.model(y.float()[:, None])) for y in self.other)
                assert checked == LENGTH * BATCH

    def by_zip(self) -> Iterator[int]:
        for place, (x, y) in enumerate(zip(self.loader, self.other, strict=True)):
            yield from self.train(x)
            assert y.tolist() == list(range(place * BATCH, place * BATCH + BATCH))

    def by_hand(self) -> Iterator[int]:
        batches = iter(self.loader)
        for _ in range(len(self.loader)):
            try:
                x = next(batches)
            except ValueError:
                yield -1
                continue
            yield from self.train(x)
        assert next(batches, None) is None

    def run(self) -> None:
        shapes = {"zip": self.by_zip, "hand": self.by_hand, "bad": self.by_hand}
        for epoch in range(self.args.epochs):
            seen = list(shapes.get(self.args.shape, self.by_for)())
            if self.args.steps is None and self.args.shape != "bad":
                assert len(seen) == LENGTH * BATCH, f"{len(seen)} samples in epoch {epoch}"
            print(epoch, self.steps, " ".join(map(str, seen)))


def main(words: list[str] | None = None) -> None:
    light.started()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--shape", choices=["for", "zip", "stream", "check", "hand", "bad"], default="for")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=None, help="stop after this many steps, in the middle of an epoch")
    torch.manual_seed(0)
    Trainer(parser.parse_args(words)).run()


if __name__ == "__main__":
    main()
