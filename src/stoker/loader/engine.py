"""Batches of a known source: the loader's arrow, put together."""

from collections.abc import Callable
from typing import Any, Literal

from stoker.errors import OtherSourceError, UsageError
from stoker.loader import budget
from stoker.loader.assemble import Pool
from stoker.loader.deliver import Stream, Times
from stoker.loader.fetch import Batches, OnError, Split, Windows, rows_ahead
from stoker.loader.order import Order
from stoker.loader.quality import Quality
from stoker.loader.source.blocks import EvenBlocks
from stoker.loader.source.interface import Batch, Source
from stoker.loader.stats import Stats

Shuffle = bool | Literal["full"]


class SourceEngine:
    """Threads over one source."""

    def __init__(
        self,
        source: Source,
        split: Split,
        *,
        shuffle: Shuffle,
        seed: int,
        memory_bytes: int,
        window: int | None,
        threads: int,
        on_error: OnError,
        map: Callable[[Batch], Any] | None,  # noqa: A002  the name that the public argument has
    ) -> None:
        self.source = source
        self.split = split
        self._memory_bytes = memory_bytes
        self._threads = threads
        self._shuffle = shuffle
        self._order = self._make_order(seed, window)
        self._pool = Pool()
        self._quality = Quality(source)
        self._batches = Batches(source, self._pool.lease, on_error=on_error, map=map, seen=self._quality.see)
        self._times = Times()
        self._stream: Stream | None = None

    def _make_order(self, seed: int, window: int | None) -> Order:
        blocks = self.source.blocks
        if self._shuffle == "full":
            if self.source.holds_blocks:
                raise UsageError(
                    f"shuffle='full' reads single rows at random; of a {self.source.kind} source each would decode a "
                    "whole block. Use shuffle=True"
                )
            blocks = EvenBlocks(blocks.rows, 1)
            window = window or budget.window_rows(self.source, self._memory_bytes)
        window = window or budget.window_blocks(self.source, self._memory_bytes)
        return Order(blocks, window_blocks=window, seed=seed, shuffle=bool(self._shuffle))

    def stream(self, epoch: int, position: int) -> Stream:
        """Batches from a position on."""
        windows = Windows(
            self.source,
            self._order,
            budget_bytes=self._memory_bytes,
            drops=self.source.row_bytes * len(self.source) > self._memory_bytes,
        )
        reader = self.source.reader(
            rows_ahead(self._order, self.split.tickets(epoch, position)),
            memory_bytes=budget.ahead_bytes(self._memory_bytes),
            threads=self._threads,
        )
        self._stream = Stream(
            self.split.tickets(epoch, position),
            windows,
            self._batches,
            reader=reader,
            threads=self._threads,
            depth=budget.depth(self.source.row_bytes * self.split.batch_size, self._memory_bytes),
            times=self._times,
        )
        return self._stream

    def count(self) -> int:
        """Batches of an epoch."""
        return self.split.count()

    def is_over(self, position: int) -> bool:
        """True if an epoch ends at this position."""
        return position >= self.split.end

    def order_state(self) -> dict[str, Any]:
        """What decides the order, besides the seed."""
        return {
            "shuffle": self._shuffle,
            "window_blocks": self._order.window_blocks,
            "blocks": self._order.blocks.count,
        }

    def restore_order(self, seed: int, state: dict[str, Any]) -> None:
        """Go on in the order of a saved state."""
        if state["shuffle"] != self._shuffle or state["blocks"] != self._order.blocks.count:
            raise OtherSourceError(
                f"the state was taken with shuffle={state['shuffle']} over {state['blocks']} blocks; this loader has "
                f"shuffle={self._shuffle} over {self._order.blocks.count}. Make it with the same settings."
            )
        self._order = self._make_order(seed, int(state["window_blocks"]))

    def fingerprint(self) -> dict[str, Any]:
        """What makes the data this data."""
        return self.source.fingerprint()

    def stats(self, rows_per_s: float | None) -> Stats:
        """Figures so far."""
        times, stream = self._times, self._stream
        block_ratio, file_ratio = self._quality.ratios() if self._shuffle else (None, None)
        return Stats(
            batches=times.batches,
            rows=times.rows,
            rows_per_s=rows_per_s,
            consumer_wait_s=times.consumer_wait_s,
            starved_batches=times.starved,
            gather_s=times.gather_s,
            load_s=times.load_s,
            thread_idle_s=times.thread_idle_s,
            bytes_read=times.bytes_read if self.source.holds_blocks else round(times.rows * self.source.row_bytes),
            bytes_used=round(times.rows * self.source.row_bytes),
            pair_ratio=block_ratio,
            file_pair_ratio=file_ratio,
            padding_share=None,
            buffer_bytes=self._pool.nbytes(),
            held_bytes=stream.held_bytes() if stream else 0,
            buffers_made=self._pool.made,
            threads=stream.threads if stream else 0,
            prefetch=stream.depth if stream else None,
            window_blocks=self._order.window_blocks if self._shuffle else None,
            skipped_rows=self._batches.skipped_rows,
            skipped=tuple(self._batches.skipped),
            remote=self.source.remote(),
        )

    def close(self) -> None:
        """Let go of buffers."""
        self._pool.close()
