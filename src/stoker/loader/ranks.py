"""Which rank this process is, of how many, and which part of every batch falls to it."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from stoker.errors import UsageError


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

    def epoch(self, epoch: int, position: int) -> Iterator[Ticket]:
        """The rank's batches of one epoch, from a global position on."""
        size, whole = self.batch_size, self.batch_size * self.world_size
        before = self.rank * size
        for start in range(position, self.rows - whole + 1, whole):
            first = start + before
            yield Ticket(epoch, first, first + size, start + whole)
        start = position + max(0, self.rows - position) // whole * whole
        share, more = divmod(self.rows - start, self.world_size)
        first = start + self.rank * share + min(self.rank, more)
        stop = first + share + (self.rank < more)
        if stop > first and not self.drop_last:
            yield Ticket(epoch, first, stop, self.rows)

    def tickets(self, epoch: int, position: int) -> Iterator[Ticket]:
        """All batches from here on, epoch after epoch, without end."""
        while True:
            yield from self.epoch(epoch, position)
            epoch, position = epoch + 1, 0

    def count(self) -> int:
        """The rank's batches in a whole epoch."""
        whole = self.batch_size * self.world_size
        full, rest = divmod(self.rows, whole)
        return full + (not self.drop_last and rest > self.rank)


def detect(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """What was given, else torch.distributed, else the environment of torchrun, else a single process."""
    if (rank is None) != (world_size is None):
        raise UsageError(f"rank is {rank} and world_size is {world_size}; give both, or neither to have them detected")
    if rank is None or world_size is None:
        rank, world_size = _from_torch() or _from_environment()
    if not 0 <= rank < world_size:
        raise UsageError(f"rank is {rank} of {world_size}; expected 0 to {world_size - 1}")
    return rank, world_size


def _from_torch() -> tuple[int, int] | None:
    import torch.distributed

    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    return torch.distributed.get_rank(), torch.distributed.get_world_size()


def _from_environment() -> tuple[int, int]:
    try:
        return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    except ValueError as error:
        raise UsageError(
            f"RANK and WORLD_SIZE must be whole numbers ({error}); or give rank= and world_size="
        ) from error
