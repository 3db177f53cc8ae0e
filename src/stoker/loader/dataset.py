"""Any torch Dataset: torch's own workers and collate, fed from an array, without a gap between epochs."""

import hashlib
import time
from collections.abc import Iterator
from functools import partial
from itertools import tee
from multiprocessing.connection import wait
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from stoker.errors import ClosedError, OtherSourceError, UsageError, WorkerDiedError
from stoker.loader.deliver import CLOSED
from stoker.loader.device import Copier, copier
from stoker.loader.order import Order
from stoker.loader.ranks import Split, Ticket
from stoker.loader.source.blocks import EvenBlocks
from stoker.loader.stats import Stats

_DYING_S = 0.5
"""How long a worker may take to be gone, from when it let go of what it shares."""
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


class _Singles(_Indices):
    """A sampler without end: the indices one by one, for samples that are not put into batches."""

    def __iter__(self) -> Iterator[Any]:
        return (index for indices in super().__iter__() for index in indices)


class _Intake:
    """What the consumer gets, over all streams of a loader: counted, timed, and on its device."""

    def __init__(self, copier: Copier | None) -> None:
        self._copier = copier
        self.batches = 0
        self.rows = 0
        self.wait_s = 0.0

    def take(self, batches: Iterator[Any]) -> Any:
        """The next batch; a worker that was ended from outside is named."""
        begin = time.perf_counter()
        try:
            batch = _next(batches)
        except RuntimeError as error:
            if str(error).startswith("DataLoader worker"):
                raise WorkerDiedError(f"{error} Out of memory? Fewer workers or a smaller batch need less.") from error
            raise
        self.wait_s += time.perf_counter() - begin
        self.batches += 1
        return batch if self._copier is None else self._copier.finish(self._copier.start(batch))


def _next(batches: Iterator[Any]) -> Any:
    """The next batch. A worker lets go of what it shares a moment before it is gone, which torch does not wait for."""
    try:
        return next(batches)
    except (EOFError, OSError) as error:
        workers = {one.sentinel: one.pid for one in getattr(batches, "_workers", ())}
        ended = [workers[one] for one in wait(list(workers), _DYING_S if workers else 0) if isinstance(one, int)]
        if ended:
            raise RuntimeError(f"DataLoader worker (pid {ended[0]}) exited unexpectedly.") from error
        raise


class _Ordered:
    """A stream in Stoker's order."""

    def __init__(self, tickets: Iterator[Ticket], batches: Iterator[Any], intake: _Intake) -> None:
        self._tickets = tickets
        self._next = next(tickets)
        self._batches: Iterator[Any] | None = batches
        self._intake = intake

    def at(self) -> int:
        """The epoch of the next batch."""
        return self._next.epoch

    def get(self, epoch: int) -> tuple[int, Any] | None:
        """The next batch of an epoch and the global position after it; None once the epoch is over."""
        if self._batches is None:
            raise ClosedError(CLOSED)
        ticket = self._next
        if ticket.epoch != epoch:
            return None
        batch = self._intake.take(self._batches)
        self._intake.rows += ticket.stop - ticket.start
        self._next = next(self._tickets)
        return ticket.after, batch

    def close(self) -> None:
        """End the workers: they go with torch's iterator."""
        self._batches = None


class _Theirs:
    """A stream in the order of the user's sampler, or of an iterable dataset. Positions count batches."""

    def __init__(self, loader: "DataLoader[Any]", epoch: int, position: int, intake: _Intake) -> None:
        self._loader: DataLoader[Any] | None = loader
        self._epoch = epoch
        self._position = position
        self._batches: Iterator[Any] | None = None
        self._intake = intake

    def at(self) -> int:
        """The epoch of the next batch."""
        return self._epoch

    def get(self, epoch: int) -> tuple[int, Any] | None:
        """The next batch of an epoch and the number of batches up to it; None once the epoch is over."""
        if self._loader is None:
            raise ClosedError(CLOSED)
        if epoch != self._epoch:
            return None
        if self._batches is None:
            self._batches = iter(self._loader)
            for _ in range(self._position):  # an order that is not ours can only be run through again
                next(self._batches, None)
        try:
            batch = self._intake.take(self._batches)
        except StopIteration:
            self._batches, self._epoch, self._position = None, self._epoch + 1, 0
            return None
        self._position += 1
        return self._position, batch

    def close(self) -> None:
        """End the workers: they go with torch's iterator, which its loader keeps where they are persistent."""
        self._loader = self._batches = None


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
        device: str | torch.device | None,
    ) -> None:
        on_device = copier(device)
        if on_device is not None:  # a copy that nobody waits for needs pinned memory
            arguments = arguments | {"pin_memory": True}
        self._dataset = dataset
        self.split = split
        self._shuffle = bool(shuffle)
        self._arguments = arguments
        self._intake = _Intake(on_device)
        if split is None:
            if arguments.get("num_workers"):
                arguments = arguments | {"persistent_workers": True}
            self._theirs = partial(DataLoader, dataset, shuffle=shuffle, **arguments)
            self._theirs()  # what torch refuses is said now
        else:
            self._order = self._make_order(seed)

    def _make_order(self, seed: int) -> Order:
        # One block: any row can be read at any time, so that the shuffle is a permutation of all.
        assert self.split is not None
        rows = self.split.rows
        return Order(EvenBlocks(rows, rows), window_blocks=1, seed=seed, shuffle=self._shuffle)

    def stream(self, epoch: int, position: int) -> "_Ordered | _Theirs":
        """Batches from a position on, by a DataLoader of their own: two passes at once share no worker."""
        if self.split is None:
            return _Theirs(self._theirs(), epoch, position, self._intake)
        tickets, ahead = tee(self.split.tickets(epoch, position))
        arguments = dict(self._arguments)
        if "batch_size" in arguments:  # None: samples as they are
            arguments["sampler"] = _Singles(self._order, ahead)
        else:
            arguments["batch_sampler"] = _Indices(self._order, ahead)
        return _Ordered(tickets, iter(DataLoader(self._dataset, **arguments)), self._intake)

    def count(self) -> int:
        """Batches of an epoch."""
        if self.split is not None:
            return self.split.count()
        return len(self._theirs())

    def is_over(self, position: int) -> bool:
        """True if an epoch ends at this position."""
        if self.split is not None:
            return position >= self.split.end
        if isinstance(self._dataset, IterableDataset):
            return False
        try:
            return position >= self.count()
        except TypeError:  # the user's sampler does not know its length
            return False

    def order_state(self) -> dict[str, Any]:
        """What decides the order, besides the seed."""
        if not self._arguments.get("in_order", True):
            raise UsageError(
                "with in_order=False nobody knows which batches were delivered; leave it out to save a state"
            )
        state: dict[str, Any] = {"shuffle": self._shuffle, "ours": self.split is not None}
        if self.split is None:  # the position counts batches
            state |= {name: self._arguments.get(name) for name in ("batch_size", "drop_last")}
            if isinstance(self._dataset, IterableDataset):  # each worker has a part of its own
                state["num_workers"] = self._arguments["num_workers"]
        return state

    def restore_order(self, seed: int, state: dict[str, Any]) -> None:
        """Go on in the order of a saved state."""
        here = self.order_state()
        if state != here:
            raise OtherSourceError(
                f"the state was taken with {state}; this loader has {here}. Make it with the same settings"
            )
        if self.split is not None:
            self._order = self._make_order(seed)

    def fingerprint(self) -> dict[str, Any]:
        """The type of the dataset and its length; its contents are unknown."""
        rows = self.split.rows if self.split is not None else None
        kind = f"{type(self._dataset).__module__}.{type(self._dataset).__qualname__}"
        digest = hashlib.sha256(repr((kind, rows)).encode()).hexdigest()[:32]
        return {"kind": "dataset", "schema": kind, "rows": rows, "digest": digest}

    def stats(self, rows_per_s: float | None) -> Stats:
        """Figures so far; what happens inside torch's workers is not measured."""
        return Stats(
            batches=self._intake.batches,
            rows=self._intake.rows,
            rows_per_s=rows_per_s,
            consumer_wait_s=self._intake.wait_s,
            threads=int(self._arguments.get("num_workers") or 0),
            prefetch=self._arguments.get("prefetch_factor"),
        )

    def close(self) -> None:
        """Nothing is left to do: the workers went with the streams."""
