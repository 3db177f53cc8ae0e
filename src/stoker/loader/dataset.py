"""Any torch Dataset: torch's own workers and collate, fed from an array, without a gap between epochs."""

import hashlib
import time
from collections.abc import Iterator
from itertools import tee
from typing import Any

from torch.utils.data import DataLoader, Dataset

from stoker.errors import OtherSourceError, UsageError, WorkerDiedError
from stoker.loader.order import Order
from stoker.loader.ranks import Split, Ticket
from stoker.loader.source.blocks import EvenBlocks
from stoker.loader.stats import Stats

_LISTED = 8192
"""Indices that are made into a list at a time: one call for many batches, and no list as long as the data set."""


class _Indices:
    """A batch sampler without end: lists of indices, epoch after epoch, so that workers never stop between epochs."""

    def __init__(self, order: Order, tickets: Iterator[Ticket]) -> None:
        self._order = order
        self._tickets = tickets

    def __iter__(self) -> Iterator[list[int]]:
        now, first, rows = -1, 0, list[int]()
        for ticket in self._tickets:
            if ticket.epoch != now:
                now, rows = ticket.epoch, []
                window = self._order.epoch(now).window(0)
            if ticket.stop > first + len(rows) or not rows:
                first = ticket.start
                rows = window.rows(first, min(max(first + _LISTED, ticket.stop), window.stop)).tolist()
            yield rows[ticket.start - first : ticket.stop - first]


class _Counts:
    """What was delivered, and how long the consumer waited."""

    def __init__(self) -> None:
        self.batches = 0
        self.rows = 0
        self.wait_s = 0.0

    def take(self, batches: Iterator[Any]) -> Any:
        """The next batch; a worker that was ended from outside is named."""
        begin = time.perf_counter()
        try:
            batch = next(batches)
        except RuntimeError as error:
            if str(error).startswith("DataLoader worker"):
                raise WorkerDiedError(f"{error} Out of memory? Fewer workers or a smaller batch need less.") from error
            raise
        self.wait_s += time.perf_counter() - begin
        self.batches += 1
        return batch


class _Ordered:
    """A stream in Stoker's order."""

    def __init__(
        self, dataset: Any, order: Order, split: Split, start: tuple[int, int], arguments: dict[str, Any]
    ) -> None:
        self._tickets, ahead = tee(split.tickets(*start))
        self._next = next(self._tickets)
        indices = _Indices(order, ahead)
        self._batches: Iterator[Any] = iter(DataLoader(dataset, batch_sampler=indices, **arguments))
        self.counts = _Counts()

    def at(self) -> int:
        """The epoch of the next batch."""
        return self._next.epoch

    def get(self, epoch: int) -> tuple[int, Any] | None:
        """The next batch of an epoch and the global position after it; None once the epoch is over."""
        ticket = self._next
        if ticket.epoch != epoch:
            return None
        batch = self.counts.take(self._batches)
        self.counts.rows += ticket.stop - ticket.start
        self._next = next(self._tickets)
        return ticket.after, batch

    def close(self) -> None:
        """End the workers: they go with torch's iterator."""
        self._batches = iter(())


class _Theirs:
    """A stream in the order of the user's sampler, or of an iterable dataset. Positions count batches."""

    def __init__(self, loader: "DataLoader[Any]", epoch: int, position: int) -> None:
        self._loader = loader
        self._epoch = epoch
        self._position = position
        self._batches: Iterator[Any] | None = None
        self.counts = _Counts()

    def at(self) -> int:
        """The epoch of the next batch."""
        return self._epoch

    def get(self, epoch: int) -> tuple[int, Any] | None:
        """The next batch of an epoch and the number of batches up to it; None once the epoch is over."""
        if epoch != self._epoch:
            return None
        if self._batches is None:
            self._batches = iter(self._loader)
            for _ in range(self._position):  # an order that is not ours can only be run through again
                next(self._batches, None)
        try:
            batch = self.counts.take(self._batches)
        except StopIteration:
            self._batches, self._epoch, self._position = None, self._epoch + 1, 0
            return None
        self._position += 1
        return self._position, batch

    def close(self) -> None:
        """End the workers: they go with torch's iterator."""
        self._batches = None


class DatasetEngine:
    """Torch's machinery over one Dataset. `arguments` are DataLoader's, as the user gave them."""

    def __init__(
        self,
        dataset: "Dataset[Any]",
        split: Split | None,
        *,
        shuffle: bool | None,
        seed: int,
        arguments: dict[str, Any],
    ) -> None:
        self._dataset = dataset
        self._split = split
        self._shuffle = bool(shuffle)
        self._arguments = arguments
        self._stream: _Ordered | _Theirs | None = None
        self._theirs: DataLoader[Any] | None = None
        if split is None:
            if arguments.get("num_workers"):
                arguments = arguments | {"persistent_workers": True}
            self._theirs = DataLoader(dataset, shuffle=shuffle, **arguments)
        else:
            self._order = self._make_order(seed)

    def _make_order(self, seed: int) -> Order:
        # One block: any row can be read at any time, so that the shuffle is a permutation of all.
        assert self._split is not None
        rows = self._split.rows
        return Order(EvenBlocks(rows, rows), window_blocks=1, seed=seed, shuffle=self._shuffle)

    def stream(self, epoch: int, position: int) -> "_Ordered | _Theirs":
        """Batches from a position on."""
        if self._split is None:
            assert self._theirs is not None
            self._stream = _Theirs(self._theirs, epoch, position)
        else:
            self._stream = _Ordered(self._dataset, self._order, self._split, (epoch, position), dict(self._arguments))
        return self._stream

    def count(self) -> int:
        """Batches of an epoch."""
        if self._split is not None:
            return self._split.count()
        assert self._theirs is not None
        return len(self._theirs)

    def is_over(self, position: int) -> bool:
        """True if an epoch ends at this position."""
        return self._split is not None and position >= self._split.end

    def order_state(self) -> dict[str, Any]:
        """What decides the order, besides the seed."""
        if not self._arguments.get("in_order", True):
            raise UsageError(
                "with in_order=False nobody knows which batches were delivered; leave it out to save a state"
            )
        return {"shuffle": self._shuffle, "ours": self._split is not None}

    def restore_order(self, seed: int, state: dict[str, Any]) -> None:
        """Go on in the order of a saved state."""
        if state != self.order_state():
            raise OtherSourceError(f"the state was taken with {state}; this loader has {self.order_state()}")
        if self._split is not None:
            self._order = self._make_order(seed)

    def fingerprint(self) -> dict[str, Any]:
        """The type of the dataset and its length; its contents are unknown."""
        rows = self._split.rows if self._split is not None else None
        kind = f"{type(self._dataset).__module__}.{type(self._dataset).__qualname__}"
        digest = hashlib.sha256(repr((kind, rows)).encode()).hexdigest()[:32]
        return {"kind": "dataset", "schema": kind, "rows": rows, "digest": digest}

    def stats(self, rows_per_s: float | None) -> Stats:
        """Figures so far; what happens inside torch's workers is not measured."""
        counts = self._stream.counts if self._stream is not None else _Counts()
        return Stats(
            batches=counts.batches,
            rows=counts.rows,
            rows_per_s=rows_per_s,
            consumer_wait_s=counts.wait_s,
            threads=int(self._arguments.get("num_workers") or 0),
            prefetch=self._arguments.get("prefetch_factor"),
        )

    def close(self) -> None:
        """End the workers."""
        self._theirs = None
        if self._stream is not None:
            self._stream.close()
