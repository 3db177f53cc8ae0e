"""Memory as a number of bytes, and what it buys: how many blocks a window mixes, how many batches are ready."""

from stoker.errors import UsageError
from stoker.loader.source.interface import Source

MEMORY_BYTES = 2 << 30
"""The default budget. A constant, not a share of the machine: the window follows from it, and the order from that."""

_WINDOW_SHARE = 0.8
"""Of the budget, for windows; the rest is for batches."""
_ORDER_BYTES = 24
"""What the order of a window takes for each row, while it is sorted."""
_PAGE_BYTES = 4096
_BLOCKS_IN_ORDER = 16
"""Without shuffle a window only has to keep the threads busy."""


def window_blocks(source: Source, memory_bytes: int, *, shuffle: bool) -> int:
    """As many blocks as the budget allows, in windows of equal size; without shuffle, a few."""
    count = source.blocks.count
    per_block = (source.row_bytes + _ORDER_BYTES) * source.blocks.rows / count
    most = int(memory_bytes * _WINDOW_SHARE / per_block)
    if source.holds_blocks and most < count:
        most //= 2  # one window is in use while the next is loaded; all blocks at once are loaded only once
        if most < 1:
            raise UsageError(
                f"a block of this {source.kind} source takes about {per_block / 1e6:.0f} MB, and two of them do not "
                f"fit into memory={memory_bytes}; raise memory=, or rewrite the files with smaller blocks"
            )
    most = min(most, count) if shuffle else min(most, count, _BLOCKS_IN_ORDER)
    windows = -(-count // max(1, most))
    return -(-count // windows)


def window_rows(source: Source, memory_bytes: int) -> int:
    """The rows of a window of a full shuffle, each of which touches pages of its own."""
    return max(1, int(memory_bytes * _WINDOW_SHARE / (source.row_bytes + 2 * _PAGE_BYTES)))


def depth(batch_bytes: float, memory_bytes: int) -> int:
    """How many batches may be ready or under way at once."""
    return max(2, min(64, int(memory_bytes * (1 - _WINDOW_SHARE) / max(1.0, batch_bytes)) - 2))


def ahead_bytes(memory_bytes: int) -> int:
    """What a source that reads ahead along the order may hold, under way or arrived."""
    return int(memory_bytes * _WINDOW_SHARE / 2)
