"""Batches from windows: which windows a batch needs, what has to be loaded for them, and the gather itself.

Runs in the threads of `deliver`, which calls everything here except `Batches.make` and the jobs' `run` under its lock.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from stoker.errors import DataError, MapError
from stoker.loader.order import Order, Window
from stoker.loader.source.blocks import Ints
from stoker.loader.source.interface import BadRowsError, Batch, Lease, Pick, Place, Reader, Skipped, Source

OnError = Literal["raise", "skip"]
_SKIPPED_LISTED = 1000


@dataclass(frozen=True, slots=True)
class Ticket:
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
        whole = self.batch_size * self.world_size
        for start in range(position, self.end, whole):
            rows = min(whole, self.rows - start)
            if self.drop_last and rows < whole:
                return
            share, more = divmod(rows, self.world_size)
            first = start + self.rank * share + min(self.rank, more)
            stop = first + share + (self.rank < more)
            if stop > first:
                yield Ticket(epoch, first, stop, start + rows)

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


@dataclass(slots=True)
class Ready:
    """A window on its way: its order computed, its blocks held (an exception stands for one that failed)."""

    epoch: int
    index: int
    window: Window | None = None
    held: list[Any] = field(default_factory=list)
    handed: int = 0
    """Jobs handed out: the order first, then one for each block."""
    finished: int = 0
    nbytes: int = 0
    error: BaseException | None = None
    """Why its order or its files could not be prepared; every batch of it raises this."""

    def share_before(self, position: int) -> float:
        """The share of the window that lies before a position."""
        if self.window is None:
            return 0.0
        return max(0.0, (position - self.window.start) / (self.window.stop - self.window.start))


@dataclass(slots=True)
class Job:
    """A piece of work for a thread. `run` works without the lock; `done` takes its result, under the lock."""

    run: Callable[[], Any]
    done: Callable[[Any], None]
    stage: Literal["gather_s", "load_s"] = "load_s"


def rows_ahead(order: Order, tickets: Iterator[Ticket]) -> Iterator[tuple[Place, Ints]]:
    """The rows of each coming batch, for a source that reads ahead."""
    windows: dict[tuple[int, int], Window] = {}
    for ticket in tickets:
        epoch = order.epoch(ticket.epoch)
        wanted = [(ticket.epoch, index) for index in range(epoch.find(ticket.start), epoch.find(ticket.stop - 1) + 1)]
        windows = {key: windows.get(key) or epoch.window(key[1]) for key in wanted}
        parts = [w.rows(max(ticket.start, w.start), min(ticket.stop, w.stop)) for w in windows.values()]
        yield Place(order.seed, ticket.epoch, ticket.start), np.concatenate(parts)


class Windows:
    """The windows that are wanted now, and the next one. `deliver` holds its lock around every call."""

    def __init__(self, source: Source, order: Order, *, budget_bytes: int, drops: bool) -> None:
        self._source = source
        self._order = order
        self._budget_bytes = budget_bytes
        self._drops = drops
        self._ready: dict[tuple[int, int], Ready] = {}
        self._left: list[Window] = []
        self.loaded_blocks = 0
        self.held_bytes = 0

    def needed(self, ticket: Ticket) -> list[Ready]:
        """The windows that hold a batch's rows."""
        epoch = self._order.epoch(ticket.epoch)
        first, last = epoch.find(ticket.start), epoch.find(ticket.stop - 1)
        return [self._get(ticket.epoch, index) for index in range(first, last + 1)]

    def _get(self, epoch: int, index: int) -> Ready:
        key = (epoch, index)
        if key not in self._ready:
            self._ready[key] = Ready(epoch, index)
        return self._ready[key]

    def is_ready(self, window: Ready) -> bool:
        """True if batches can be made of it."""
        if window.error is not None:
            return True
        return window.window is not None and window.finished == 1 + len(window.held)

    def job(self, window: Ready) -> Job | None:
        """The next thing to do for a window, if any is left to hand out."""
        if window.handed == 0:
            window.handed = 1
            return Job(lambda: self._compute(window), lambda result: self._computed(window, result))
        if window.window is None or window.handed > len(window.held):
            return None
        slot = window.handed - 1
        window.handed += 1
        block = int(window.window.blocks[slot])
        return Job(lambda: self._load(block), lambda result: self._loaded(window, slot, result))

    def ahead(self, window: Ready, progress: float) -> Job | None:
        """A thing to do for the window after this one, in step with the share of this one that is used up."""
        epoch, index = (window.epoch, window.index + 1)
        if index == self._order.windows:
            epoch, index = epoch + 1, 0
        following = self._get(epoch, index)
        if following.window is None:
            return self.job(following)
        if not following.held or following.handed - 1 > progress * len(following.held):
            return None
        per_block = self.held_bytes / max(1, sum(len(ready.held) for ready in self._ready.values()))
        return self.job(following) if self.held_bytes + per_block <= self._budget_bytes else None

    def release(self, ticket: Ticket | None) -> None:
        """Let go of windows that end before the oldest unfinished batch."""
        if ticket is None:
            return
        now = (ticket.epoch, ticket.start)
        for key, ready in list(self._ready.items()):
            if ready.window is not None and (ready.epoch, ready.window.stop - 1) < now:
                del self._ready[key]
                self.held_bytes -= ready.nbytes
                if self._drops:
                    self._left.append(ready.window)

    def leaving(self) -> Job | None:
        """A window to take out of memory, if one is used up."""
        if not self._left:
            return None
        window = self._left.pop()
        return Job(lambda: self._source.leave(window.first, window.sizes), lambda _: None)

    def _compute(self, ready: Ready) -> Window:
        window = self._order.epoch(ready.epoch).window(ready.index)
        self._source.enter(window.first, window.sizes)
        return window

    def _computed(self, ready: Ready, result: Any) -> None:
        if isinstance(result, BaseException):
            ready.error = result
            return
        ready.window = result
        ready.held = [None] * len(result.blocks) if self._source.holds_blocks else []
        ready.finished += 1

    def _load(self, block: int) -> Any:
        return self._source.load(block)

    def _loaded(self, ready: Ready, slot: int, result: Any) -> None:
        ready.held[slot] = result
        ready.finished += 1
        nbytes = int(getattr(result, "nbytes", 0))
        ready.nbytes += nbytes
        self.held_bytes += nbytes
        self.loaded_blocks += 1


class Batches:
    """Makes one batch out of ready windows; called by many threads at once."""

    def __init__(
        self,
        source: Source,
        lease: Lease,
        *,
        on_error: OnError,
        map: Callable[[Batch], Any] | None,  # noqa: A002  the name that the public argument has
        seen: Callable[[Ints], None],
    ) -> None:
        self._source = source
        self._lease = lease
        self._on_error = on_error
        self._map = map
        self._seen = seen
        self._bad_blocks: set[int] = set()
        self._bad_rows: set[int] = set()
        self.skipped: list[Skipped] = list(source.skipped)
        self.skipped_rows = sum(skipped.rows for skipped in source.skipped)

    def make(self, ticket: Ticket, windows: list[Ready], reader: Reader | None = None) -> Any:
        """The batch, or None if every row of it had to be left out."""
        pick = self._pick(ticket, windows)
        if pick.held:
            pick = self._without_failed(pick, windows)
        batch = None
        while batch is None and len(pick.rows):
            try:
                batch = (reader or self._source).gather(pick, self._lease)
            except BadRowsError as error:
                pick = self._without_bad(pick, error)
        if batch is None:
            return None
        self._seen(pick.rows)
        return batch if self._map is None else self._mapped(batch, ticket, pick)

    def _pick(self, ticket: Ticket, windows: list[Ready]) -> Pick:
        parts, slots, held, place = [], 0, [], Place()
        for ready in windows:
            if ready.error is not None:
                raise ready.error
            window = ready.window
            assert window is not None
            start, stop = max(ticket.start, window.start), min(ticket.stop, window.stop)
            place = Place(window.seed, ticket.epoch, ticket.start)
            slot, inner = window.place(start, stop)
            parts.append((window.first[slot] + inner, slot + slots, inner))
            slots += len(window.blocks)
            held += ready.held
        if len(parts) == 1:
            return Pick(*parts[0], held, place)
        rows, slot, inner = (np.concatenate(column) for column in zip(*parts, strict=True))
        return Pick(rows, slot, inner, held, place)

    def _without_failed(self, pick: Pick, windows: list[Ready]) -> Pick:
        used = np.unique(pick.slot)
        failed = [int(slot) for slot in used if isinstance(pick.held[slot], BaseException)]
        if not failed:
            return pick
        first = pick.held[failed[0]]
        if self._on_error == "raise" or not isinstance(first, DataError):
            raise first
        for slot in failed:
            self._note(pick, slot)
        keep = ~np.isin(pick.slot, failed)
        self.skipped_rows += int((~keep).sum())
        return pick.where(keep)

    def _without_bad(self, pick: Pick, bad: BadRowsError) -> Pick:
        if self._on_error == "raise":
            raise next(iter(bad.errors.values())) from None
        for at, error in bad.errors.items():
            row = int(pick.rows[at])
            if row not in self._bad_rows and len(self.skipped) < _SKIPPED_LISTED:
                self._bad_rows.add(row)
                self.skipped.append(Skipped(*self._source.locate(row), 1, error.reason))
        keep = np.ones(len(pick.rows), bool)
        keep[list(bad.errors)] = False
        self.skipped_rows += len(bad.errors)
        return pick.where(keep)

    def _note(self, pick: Pick, slot: int) -> None:
        error = pick.held[slot]
        at = int(np.flatnonzero(pick.slot == slot)[0])
        first = int(pick.rows[at] - pick.inner[at])
        if first not in self._bad_blocks and len(self.skipped) < _SKIPPED_LISTED:
            self._bad_blocks.add(first)
            path, row = self._source.locate(first)
            self.skipped.append(Skipped(path, row, error.rows if hasattr(error, "rows") else 0, error.reason))

    def _mapped(self, batch: Batch, ticket: Ticket, pick: Pick) -> Any:
        assert self._map is not None
        try:
            return self._map(batch)
        except Exception as error:
            path, row = self._source.locate(int(pick.rows[0]))
            raise MapError(
                f"map failed on the batch at epoch {ticket.epoch}, position {ticket.start} "
                f"(its first sample is row {row} of {path}): {type(error).__name__}: {error}"
            ) from error
