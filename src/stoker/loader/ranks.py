"""Which rank this process is, of how many, and which part of every batch falls to it."""

import os
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from stoker.errors import UsageError
from stoker.loader import check


class Ticket(NamedTuple):
    """One batch of this rank: the epoch's positions start … stop - 1. The global position after it is `after`."""

    epoch: int
    start: int
    stop: int
    after: int


@dataclass(frozen=True, slots=True)
class Split:
    """How global batches fall to ranks: rank r takes the r-th part of each, so the order ignores their number."""

    rows: int
    batch_size: int
    drop_last: bool = False
    rank: int = 0
    world_size: int = 1

    @property
    def end(self) -> int:
        """The position at which an epoch ends."""
        return self.rows - self.rows % (self.batch_size * self.world_size) if self.drop_last else self.rows

    def after(self, position: int) -> "Split":
        """How what remains behind a global position is split."""
        return replace(self, rows=max(0, self.rows - position))

    def _divided(self, rows: int) -> tuple[int, list[int]]:
        """Whole global batches in so many rows, and the sizes of those that follow.

        A rest of fewer rows than ranks takes some of the batch before it, so that all ranks have the same number of
        batches: a training that synchronises every step would wait for ever otherwise.
        """
        whole = self.batch_size * self.world_size
        full, rest = divmod(rows, whole)
        if self.drop_last or not rest:
            return full, []
        if rest < self.world_size and full and self.batch_size > 1:
            both = whole + rest
            return full - 1, [both - both // 2, both // 2]
        return full, [rest]

    @property
    def is_even(self) -> bool:
        """True if all ranks have the same number of batches."""
        return all(rows >= self.world_size for rows in self._divided(self.rows)[1])

    def epoch(self, epoch: int, position: int) -> Iterator[Ticket]:
        """The rank's batches of one epoch, from a global position on."""
        size, whole = self.batch_size, self.batch_size * self.world_size
        full, others = self._divided(self.after(position).rows)
        before, end = self.rank * size, position + full * whole
        for start in range(position, end, whole):
            yield Ticket(epoch, start + before, start + before + size, start + whole)
        for rows in others:
            share, more = divmod(rows, self.world_size)
            first = end + self.rank * share + min(self.rank, more)
            stop = first + share + (self.rank < more)
            end += rows
            if stop > first:
                yield Ticket(epoch, first, stop, end)

    def tickets(self, epoch: int, position: int) -> Iterator[Ticket]:
        """All batches from here on, epoch after epoch, without end."""
        while True:
            yield from self.epoch(epoch, position)
            epoch, position = epoch + 1, 0

    def count(self) -> int:
        """The rank's batches in a whole epoch."""
        full, others = self._divided(self.rows)
        return full + sum(rows > self.rank for rows in others)


def warn_if_uneven(splits: Iterable[Split]) -> None:
    """Say that ranks will not make the same number of steps."""
    uneven = next((split for split in splits if not split.is_even), None)
    if uneven is not None:
        rest = uneven.rows % (uneven.batch_size * uneven.world_size)
        warnings.warn(
            f"{rest} samples remain for the last batch of {uneven.world_size} ranks, so some ranks get one batch less; "
            "a training that synchronises every step needs drop_last=True",
            stacklevel=4,
        )


def detect(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """What was given, else torch.distributed, else the environment of torchrun, else a single process."""
    if (rank is None) != (world_size is None):
        raise UsageError(f"rank is {rank} and world_size is {world_size}; give both, or neither to have them detected")
    if rank is None or world_size is None:
        rank, world_size = _from_torch() or _from_environment()
    check.whole("rank", rank, 0)
    check.whole("world_size", world_size, 1)
    if rank >= world_size:
        raise UsageError(f"rank is {rank} of {world_size}; expected 0 to {world_size - 1}")
    return rank, world_size


def _from_torch() -> tuple[int, int] | None:
    import torch.distributed

    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    return torch.distributed.get_rank(), torch.distributed.get_world_size()


def _from_environment() -> tuple[int, int]:
    world_size = os.environ.get("WORLD_SIZE", "1")
    rank = os.environ.get("RANK", "0" if world_size == "1" else "")
    try:
        return int(rank), int(world_size)
    except ValueError as error:
        raise UsageError(
            f"RANK is {rank!r} and WORLD_SIZE is {world_size!r}; set both to whole numbers, or give rank=, world_size="
        ) from error
