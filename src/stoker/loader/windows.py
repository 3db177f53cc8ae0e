"""The windows that batches are made of: their order computed, their blocks loaded, one window ahead of its use.

`deliver` calls everything here under its lock; only what a `Job` runs, runs without.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from stoker.loader.order import Order, Window
from stoker.loader.ranks import Ticket
from stoker.loader.source.blocks import Ints
from stoker.loader.source.interface import Lease, Pick, Place, Source


@dataclass(slots=True, eq=False)
class Ready:
    """A window on its way."""

    epoch: int
    index: int
    window: Window | None = None
    loaded: list[Any] = field(default_factory=list)
    """Its blocks; an exception stands for one that failed."""
    stacked: Any = None
    """What the source made of its blocks, for gathers."""
    failed: bool = False
    handed: int = 0
    """Jobs handed out: the order, then each block, then the stack."""
    finished: int = 0
    jobs: int = 1
    error: BaseException | None = None
    """Why it cannot be prepared at all; every batch of it raises this."""

    @property
    def is_ready(self) -> bool:
        """True if batches can be made of it."""
        return self.error is not None or self.finished == self.jobs

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


@dataclass(slots=True)
class _Held:
    """A loaded block, and how many windows use it."""

    loaded: Any
    users: int = 0


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
    """The windows in use, and the next one."""

    def __init__(
        self,
        source: Source,
        order: Order,
        lease: Lease,
        *,
        budget_bytes: int,
        drops: bool,
        bucket_rows: int | None = None,
    ) -> None:
        self._source = source
        self._order = order
        self._lease = lease
        self._budget_bytes = budget_bytes
        self._drops = drops
        self._bucket_rows = bucket_rows
        self._ready: dict[tuple[int, int], Ready] = {}
        self._held: dict[tuple[int, int], _Held] = {}
        """By epoch (0 if blocks are the same in all of them) and block."""
        self._left: list[Window] = []
        self.held_bytes = 0
        self.read_bytes = 0

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

    def job(self, ready: Ready, *, room: bool = True) -> Job | None:
        """The next thing to do for a window, if any can be handed out now; without room, no block is loaded."""
        if ready.handed == 0:
            ready.handed = 1
            return Job(lambda: self._compute(ready), lambda result: self._computed(ready, result))
        while ready.window is not None and ready.handed <= len(ready.loaded):
            slot = ready.handed - 1
            key = self._key(ready, int(ready.window.blocks[slot]))
            if key not in self._held and not room:
                return None
            ready.handed += 1
            if key not in self._held:
                return self._load(ready, slot, key)
            self._keep(ready, slot, key)  # another window has it: nothing is decoded twice while it is in memory
        if ready.handed == ready.jobs - 1 == ready.finished:
            ready.handed += 1
            return Job(lambda: self._stack(ready), lambda result: self._stacked(ready, result))
        return None

    def _key(self, ready: Ready, block: int) -> tuple[int, int]:
        return (ready.epoch if self._source.draws else 0, block)

    def _load(self, ready: Ready, slot: int, key: tuple[int, int]) -> Job:
        epoch, block = key

        def run() -> Any:
            if self._source.draws:
                return self._source.draw(block, self._order.seed, epoch, self._lease)
            return self._source.load(block, self._lease)

        return Job(run, lambda result: self._loaded(ready, slot, key, result))

    def ahead(self, ready: Ready, progress: float) -> Job | None:
        """A thing to do for the window after this one, in step with the share of this one that is used up."""
        epoch, index = (ready.epoch, ready.index + 1)
        if index == self._order.windows:
            epoch, index = epoch + 1, 0
        following = self._get(epoch, index)
        if following.window is None or following.handed > len(following.loaded):
            return self.job(following)
        if following.handed - 1 > progress * len(following.loaded):
            return None
        per_block = self.held_bytes / max(1, len(self._held))
        return self.job(following, room=self.held_bytes + per_block <= self._budget_bytes)

    def release(self, oldest: Ticket) -> None:
        """Let go of windows that end before the oldest unfinished batch."""
        now = (oldest.epoch, oldest.start)
        for key, ready in list(self._ready.items()):
            if ready.window is not None and (ready.epoch, ready.window.stop - 1) < now and ready.is_ready:
                del self._ready[key]
                self._let_go(ready, ready.window)

    def leaving(self) -> Job | None:
        """A window to take out of memory, if one is used up."""
        if not self._left:
            return None
        window = self._left.pop()
        return Job(lambda: self._source.leave(window.first, window.sizes), lambda _: None)

    def _let_go(self, ready: Ready, window: Window) -> None:
        if self._drops and not self._source.holds_blocks:
            self._left.append(window)
        for block in window.blocks.tolist() if ready.loaded else ():
            key = self._key(ready, block)
            held = self._held[key]
            held.users -= 1
            if held.users == 0:
                del self._held[key]
                self.held_bytes -= int(getattr(held.loaded, "nbytes", 0))

    # ---- what the jobs do

    def _compute(self, ready: Ready) -> Window:
        window = self._order.epoch(ready.epoch).window(ready.index)
        if not self._source.holds_blocks:
            self._source.enter(window.first, window.sizes)
            self._bucket(window, [])
            return window
        # What another window holds is not read again.
        lacking = [
            slot for slot, block in enumerate(window.blocks.tolist()) if self._key(ready, block) not in self._held
        ]
        self._source.enter(window.first[lacking], window.sizes[lacking])
        return window

    def _computed(self, ready: Ready, result: Any) -> None:
        if isinstance(result, BaseException):
            ready.error = result
            return
        ready.window = result
        ready.finished += 1
        if self._source.holds_blocks:
            ready.loaded = [None] * len(result.blocks)
            ready.jobs = len(ready.loaded) + 2

    def _loaded(self, ready: Ready, slot: int, key: tuple[int, int], result: Any) -> None:
        if key not in self._held:
            self._held[key] = _Held(result)
            self.held_bytes += int(getattr(result, "nbytes", 0))
            self.read_bytes += int(getattr(result, "stored_bytes", 0))
        self._keep(ready, slot, key)

    def _keep(self, ready: Ready, slot: int, key: tuple[int, int]) -> None:
        held = self._held[key]
        held.users += 1
        ready.loaded[slot] = held.loaded
        ready.failed |= isinstance(held.loaded, BaseException)
        ready.finished += 1

    def _stack(self, ready: Ready) -> tuple[Any, Window]:
        window = ready.window
        assert window is not None
        stacked = self._source.stack(ready.loaded)
        if not ready.failed:
            self._bucket(window, [stacked])
        return stacked, window

    def _bucket(self, window: Window, held: list[Any]) -> None:
        if self._bucket_rows is not None:
            slot, inner = window.place(window.start, window.stop)
            pick = Pick(window.first[slot] + inner, slot, inner, held)
            window.bucket(self._source.lengths(pick), self._bucket_rows)

    def _stacked(self, ready: Ready, result: Any) -> None:
        if isinstance(result, BaseException):
            ready.error = result
            return
        ready.stacked, ready.window = result
        ready.finished += 1
