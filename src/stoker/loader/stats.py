"""What `Loader.stats()` returns."""

from dataclasses import dataclass

from stoker.loader.source.interface import RemoteFigures, Skipped


@dataclass(frozen=True, slots=True)
class Stats:
    """Figures since the loader was made. None means "not measured" or "does not apply"."""

    batches: int
    rows: int
    """Samples delivered on this rank."""
    rows_per_s: float | None
    """Over the time from the first request for a batch to the last delivery, the consumer's own work included."""
    consumer_wait_s: float
    """Time that the consumer waited for batches. Near 0: loading costs the training nothing."""
    starved_batches: int = 0
    """Batches that were not ready when asked for."""
    gather_s: float | None = None
    """Time in gathers and `map`, summed over threads."""
    load_s: float | None = None
    """Time in reading and decoding blocks and in computing the order, summed over threads."""
    thread_idle_s: float | None = None
    """Time that threads had nothing to do. Large: the consumer is the slow half."""
    bytes_read: int | None = None
    """What was read to deliver the rows: whole blocks, for sources that are loaded block by block."""
    bytes_used: int | None = None
    """What the delivered rows take."""
    pair_ratio: float | None = None
    """Pairs of a batch from the same block ÷ what a uniform shuffle gives. 1 is as good as it gets."""
    file_pair_ratio: float | None = None
    """The same, for pairs from the same file."""
    padding_share: float | None = None
    """Of padded fields, the share of elements that are padding."""
    amplification: float | None = None
    """What was read and decoded ÷ what was used of it. 1 wastes nothing; below 1, parts were used several times."""
    buffer_bytes: int | None = None
    """Memory of batches: being made, ready, held by the consumer, and kept for reuse."""
    held_bytes: int | None = None
    """Memory of loaded blocks."""
    buffers_made: int | None = None
    """Fresh allocations. Growing with the batches means that the consumer keeps them."""
    threads: int = 0
    """Threads (or processes) that work now."""
    prefetch: int | None = None
    """Batches that may be ready or under way now."""
    run: int | None = None
    """Batches that are made by one gather now; more than one while the consumer waits for them."""
    window_blocks: int | None = None
    """Blocks that are mixed together."""
    skipped_rows: int = 0
    """Samples left out because of `on_error="skip"`."""
    skipped: tuple[Skipped, ...] = ()
    """Where they are; at most a thousand places."""
    remote: RemoteFigures | None = None
    """Requests, retries and cache of a remote source."""
