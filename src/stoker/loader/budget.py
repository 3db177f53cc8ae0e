"""Memory as a number of bytes, and what it buys: how many blocks a window mixes, how many batches are ready."""

from stoker.loader.source.interface import Source

MEMORY_BYTES = 2 << 30
"""The default budget. A constant, not a share of the machine: the window follows from it, and the order from that."""

_WINDOW_SHARE = 0.8
"""Of the budget, for windows; the rest is for batches."""
_ORDER_BYTES = 24
"""What the order of a window takes for each row, while it is sorted."""
_PAGE_BYTES = 4096


def window_blocks(source: Source, memory_bytes: int) -> int:
    """As many blocks as the budget allows, in windows of equal size."""
    # Of a source that is loaded block by block two windows are held: one in use, one being loaded.
    share = _WINDOW_SHARE / 2 if source.holds_blocks else _WINDOW_SHARE
    per_block = (source.row_bytes + _ORDER_BYTES) * source.blocks.rows / source.blocks.count
    most = max(1, int(memory_bytes * share / per_block))
    windows = -(-source.blocks.count // most)
    return -(-source.blocks.count // windows)


def window_rows(source: Source, memory_bytes: int) -> int:
    """The rows of a window of a full shuffle, each of which touches pages of its own."""
    return max(1, int(memory_bytes * _WINDOW_SHARE / (source.row_bytes + 2 * _PAGE_BYTES)))


def depth(batch_bytes: float, memory_bytes: int) -> int:
    """How many batches may be ready or under way at once."""
    return max(2, min(64, int(memory_bytes * (1 - _WINDOW_SHARE) / max(1.0, batch_bytes)) - 2))


def ahead_bytes(memory_bytes: int) -> int:
    """What a source that reads ahead along the order may hold, under way or arrived."""
    return int(memory_bytes * _WINDOW_SHARE / 2)
