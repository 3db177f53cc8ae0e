"""Which rank this process is, of how many."""

import os

from stoker.errors import UsageError


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
