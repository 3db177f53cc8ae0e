"""Memory as a number of bytes, and what it buys: how many blocks a window mixes, how many batches are ready."""

from stoker.errors import UsageError
from stoker.loader.source.interface import Source

MEMORY_BYTES = 2 << 30
"""The default budget. A constant, not a share of the machine: the window follows from it, and the order from that."""

_WINDOW_SHARE = 0.8
"""Of the budget, for windows, if all rows fit into one."""
_PART_SHARE = 0.55
"""Of the budget, for the windows in memory, if there are more: the one in use and the one after it."""
_DECODER_BYTES = 96 << 20
"""What decoding takes for itself: Arrow's allocator keeps tens of megabytes for each thread."""
_BATCH_SHARE = 0.1
"""Of the budget, for batches that are ready or under way; as much again for buffers that wait for reuse."""
_ORDER_BYTES = 24
"""What the order of a window takes for each row, while it is sorted."""
_RUN_BYTES, _RUN_MOST, _RUN_SHARE = 20 << 20, 32, 1 / 48
"""Batches made by one gather share memory, which is kept while one of them is: a small part of the budget, because
gathers of ragged rows take as much again where `runs.c` is not compiled, and small enough to stay in a processor's
cache."""
_PAGE_BYTES = 4096
_BLOCKS_IN_ORDER = 16
"""Without shuffle a window only has to keep the threads busy."""


def most_blocks(source: Source, memory_bytes: int) -> int:
    """The blocks that a window may have within the budget."""
    count = source.blocks.count
    per_block = (source.row_bytes + _ORDER_BYTES) * source.blocks.rows / count
    most = int(memory_bytes * _WINDOW_SHARE / per_block)
    if most >= count:
        return count
    spare = blocks_bytes(memory_bytes) if source.holds_blocks else memory_bytes * _PART_SHARE
    most = int(spare / 2 / per_block)
    if most < 1 and source.holds_blocks:
        raise UsageError(
            f"a block of this {source.kind} source takes about {per_block / 1e6:.0f} MB, and two of them do not "
            f"fit into memory={memory_bytes}; raise memory=, or rewrite the files with smaller blocks"
        )
    return max(1, most)


def check_batch(source: Source, batch_size: int, memory_bytes: int) -> None:
    """Refuse batches that are larger than the budget itself."""
    rows = min(batch_size, len(source))
    needed = source.batch_bytes(rows)
    if needed > memory_bytes:
        padded = ", padded to the longest of them," if needed > rows * source.row_bytes else ""
        raise UsageError(
            f"a batch of {rows} row{'s' * (rows > 1)}{padded} takes about {needed / 1e6:,.1f} MB, and memory "
            f"is {memory_bytes / 1e6:,.1f} MB; make batches of fewer or shorter rows, or raise memory="
        )


def window_blocks(source: Source, memory_bytes: int, *, shuffle: bool) -> int:
    """As many blocks as the budget allows, in windows of equal size; without shuffle, a few."""
    count, most = source.blocks.count, most_blocks(source, memory_bytes)
    windows = -(-count // (most if shuffle else min(most, _BLOCKS_IN_ORDER)))
    return -(-count // windows)


def window_rows(source: Source, memory_bytes: int) -> int:
    """The rows of a window of a full shuffle, each of which touches pages of its own."""
    return max(1, int(memory_bytes * _PART_SHARE / 2 / (source.row_bytes + 2 * _PAGE_BYTES)))


def depth(batch_bytes: float, memory_bytes: int) -> int:
    """How many batches may be ready or under way at once."""
    return max(2, min(64, int(memory_bytes * _BATCH_SHARE / max(1.0, batch_bytes)) - 2))


def run(source: Source, batch_size: int, memory_bytes: int) -> int:
    """How many batches may be made by one gather."""
    most_bytes = min(_RUN_BYTES, memory_bytes * _RUN_SHARE) if source.splits else 0
    return max(1, min(_RUN_MOST, int(most_bytes / (source.row_bytes * batch_size))))


def blocks_bytes(memory_bytes: int) -> int:
    """How much memory loaded blocks may take, those of past windows that wait for reuse included."""
    decoder = min(_DECODER_BYTES, memory_bytes // 4)
    return int((memory_bytes - decoder) * _PART_SHARE)


def kept_bytes(memory_bytes: int) -> int:
    """How much memory of buffers may wait for reuse."""
    return int(memory_bytes * _BATCH_SHARE)


def ahead_bytes(memory_bytes: int) -> int:
    """What a source that reads ahead along the order may hold, under way or arrived."""
    return int(memory_bytes * _WINDOW_SHARE / 2)
