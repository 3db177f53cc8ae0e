"""Batches of a known source: the loader's arrow, put together."""

from collections.abc import Callable
from typing import Any, Literal

import torch

from stoker.errors import OtherSourceError, UsageError
from stoker.loader import budget, check
from stoker.loader.assemble import Pool, RaggedAs, Shaper
from stoker.loader.deliver import Stream, Times
from stoker.loader.device import copier
from stoker.loader.fetch import Batches, OnError
from stoker.loader.order import Order
from stoker.loader.quality import Quality
from stoker.loader.ranks import Split
from stoker.loader.source.blocks import EvenBlocks
from stoker.loader.source.interface import Batch, Source
from stoker.loader.stats import Stats
from stoker.loader.windows import Windows, rows_ahead

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
        ragged: RaggedAs,
        buckets: bool,
        device: str | torch.device | None,
    ) -> None:
        if window is not None:
            check.whole("window", window, 1)
        check.whole("threads", threads, 0)
        check.one_of("shuffle", shuffle, (True, False, "full"))
        check.one_of("on_error", on_error, ("raise", "skip"))
        check.one_of("ragged", ragged, ("values", "nested", "padded"))
        budget.check_batch(source, split.batch_size, memory_bytes)
        self.source = source
        self.split = split
        self._memory_bytes = memory_bytes
        self._threads = threads
        self._shuffle = shuffle
        self._order = self._make_order(seed, window)
        self._bucket_rows = self._check_buckets(buckets, ragged)
        on_device = copier(device)
        self._pool = Pool(budget.kept_bytes(memory_bytes), pinned=on_device is not None)
        self._shaper = Shaper(ragged, self._pool, memory_bytes)
        self._blocks = Pool(memory_bytes)
        self._quality = Quality(source)
        self._batches = Batches(
            source,
            self._pool.lease,
            on_error=on_error,
            map=map,
            seen=self._quality.see,
            shape=self._shaper.shape,
            copier=on_device,
        )
        self._times = Times()
        self._stream: Stream | None = None
        self._read_before = 0

    def _check_buckets(self, buckets: bool, ragged: RaggedAs) -> int | None:
        if not buckets:
            return None
        if not any(field.ragged for field in self.source.fields):
            raise UsageError("buckets=True groups rows by length, but no field is ragged; leave it out")
        if not (ragged == "padded" or self.source.pads) or not self._shuffle:
            raise UsageError("buckets=True reorders rows to save padding; it needs ragged='padded' and shuffle=True")
        return self.split.batch_size

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
        window = window or budget.window_blocks(self.source, self._memory_bytes, shuffle=bool(self._shuffle))
        return Order(blocks, window_blocks=window, seed=seed, shuffle=bool(self._shuffle))

    def stream(self, epoch: int, position: int) -> Stream:
        """Batches from a position on."""
        self._read_before = self._read_bytes()
        windows = Windows(
            self.source,
            self._order,
            self._blocks.lease,
            budget_bytes=budget.blocks_bytes(self._memory_bytes),
            bucket_rows=self._bucket_rows,
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
            depth=budget.depth(self.source.batch_bytes(self.split.batch_size), self._memory_bytes),
            run=budget.run(self.source, self.split.batch_size, self._memory_bytes),
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
            "bucket_rows": self._bucket_rows,
        }

    def restore_order(self, seed: int, state: dict[str, Any]) -> None:
        """Go on in the order of a saved state."""
        here = self.order_state()
        differ = [f"{name}={state.get(name)} (here {here[name]})" for name in here if state.get(name) != here[name]]
        differ = [text for text in differ if not text.startswith("window_blocks")]
        if differ:
            raise OtherSourceError(
                f"the state was taken with {', '.join(differ)}; make the loader with the same settings"
            )
        window: Any = state.get("window_blocks")
        check.whole("the state's window", window, 1)
        most = max(budget.most_blocks(self.source, self._memory_bytes), self._order.window_blocks)
        if self._shuffle is True and window > most:
            raise UsageError(
                f"the state mixes {window} blocks at a time, and memory={self._memory_bytes} holds {most}; "
                "give memory= at least what the loader had that saved it"
            )
        self._order = self._make_order(seed, window)

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
            bytes_read=self._read_bytes(),
            bytes_used=round(times.rows * self.source.row_bytes),
            pair_ratio=block_ratio,
            file_pair_ratio=file_ratio,
            padding_share=self.source.padding_share if self.source.pads else self._shaper.padding_share(),
            amplification=self.source.amplification,
            buffer_bytes=self._pool.nbytes(),
            held_bytes=stream.held_bytes() if stream else 0,
            buffers_made=self._pool.made,
            threads=stream.threads if stream else 0,
            prefetch=stream.depth if stream else None,
            run=stream.run if stream else None,
            window_blocks=self._order.window_blocks if self._shuffle else None,
            skipped_rows=self._batches.skipped_rows,
            skipped=tuple(self._batches.skipped),
            remote=self.source.remote(),
        )

    def _read_bytes(self) -> int:
        if not self.source.holds_blocks:
            return round(self._times.rows * self.source.row_bytes)
        return self._read_before + (self._stream.read_bytes() if self._stream else 0)

    def close(self) -> None:
        """Let go of buffers."""
        self._pool.close()
        self._blocks.close()
