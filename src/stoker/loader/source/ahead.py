"""Reading ahead along the order: which objects are asked for before their batch is, within a budget of bytes."""

import threading
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from stoker.errors import ClosedError
from stoker.loader.cache import Cache
from stoker.loader.source.blocks import Ints
from stoker.loader.source.counters import Counters
from stoker.loader.source.interface import Place
from stoker.loader.source.limit import Limit
from stoker.loader.source.pieces import Listed
from stoker.loader.source.remote import Remote
from stoker.loader.source.transfer import Prepare, Transfer, Want

_BATCHES_AHEAD = 2
_ROUNDS_AHEAD = 4
"""Objects ahead: enough for two batches, and for four times what is under way."""
_SHARE_USED = 4


class Planned(NamedTuple):
    """One coming batch: its rows, and by their place in it the objects that have to be asked for."""

    rows: Ints
    wants: dict[int, Want]


class Ahead:
    """The objects of one stream's coming batches. `batch` hands out one batch's, in any order of batches."""

    def __init__(
        self,
        remote: Remote,
        listed: Listed,
        cache: Cache | None,
        batches: Iterator[tuple[Place, Ints]],
        *,
        limit: Limit,
        counters: Counters,
        budget_bytes: int,
        prepare: Prepare | None = None,
    ) -> None:
        self._listed, self._cache = listed, cache
        self._counters, self._limit = counters, limit
        self._batches = batches
        self._budget_bytes = budget_bytes
        self._lock = threading.RLock()
        self._planned: dict[Place, Planned] = {}
        self._next: deque[Want] = deque()
        """Wants that have not been asked for, in order."""
        self._ahead = 0
        self._ahead_bytes = 0
        self._handed: set[Want] = set()
        """Wants that somebody has, and may wait for."""
        self._resume_at: int | None = 0
        """So few objects ahead, and more are asked for again; None while nothing holds that back."""
        self._closed = False
        self._batch_rows = 0
        self._broken: Exception | None = None
        self._transfer = Transfer(
            remote, listed, cache, limit=limit, counters=counters, supply=self._supply, prepare=prepare
        )

    def batch(self, place: Place, rows: Ints) -> dict[int, Want]:
        """The wants of a batch, by their place in it; those not asked for so far are asked for now.

        What has no want was in the cache when it was looked for.
        """
        with self._lock:
            while place not in self._planned and self._broken is None and not self._passed(place):
                self._plan()
            if self._broken is not None and place not in self._planned:
                raise self._broken
            planned = self._planned.pop(place, None)
            if planned is None or not np.array_equal(planned.rows, rows):
                self._ahead -= len(planned.rows) if planned else 0
                planned = self._look_up(rows)
            wants = planned.wants
            self._handed.update(wants.values())
            wake = self._less(len(rows) - len(wants))
        if wake:
            self._transfer.wake()
        for want in wants.values():
            if not want.issued and not want.done:
                self._transfer.hurry(want)
        if self._closed:
            self._abandon()
        return wants

    def _passed(self, place: Place) -> bool:
        """True if the iterator is beyond a batch, so that looking for it would not end."""
        return any((p.epoch, p.position) > (place.epoch, place.position) for p in self._planned)

    def used(self, want: Want) -> None:
        """An object was used up; its memory is free for another one."""
        want.data = None
        with self._lock:
            self._handed.discard(want)
            self._ahead_bytes -= want.nbytes
            want.nbytes = 0
            wake = self._less(1)
        if wake:
            self._transfer.wake()

    def _less(self, count: int) -> bool:
        """So many objects are not ahead any more; True if more are to be asked for. The lock is held."""
        self._ahead -= count
        if self._resume_at is None or self._ahead > self._resume_at:
            return False
        self._resume_at = None
        return True

    def again(self, row: int) -> Want:
        """Ask for an object whose file in the cache was bad, or is gone."""
        fresh = Want(row, 0)
        with self._lock:
            self._handed.add(fresh)
            self._ahead += 1
        self._transfer.hurry(fresh)
        if self._closed:
            self._abandon()
        return fresh

    def close(self) -> None:
        """End all requests."""
        # A garbage collection can call this from inside the lock, for which the requests' thread may wait.
        inside = self._lock._is_owned()  # type: ignore[attr-defined]  # noqa: SLF001
        self._closed = True
        self._transfer.close(join=not inside)
        self._abandon()

    def _abandon(self) -> None:
        """Nobody brings what is still waited for; tell those who wait."""
        with self._lock:
            wants = [want for want in self._handed if not want.done]
        for want in wants:
            want.finish(error=ClosedError("the loader was closed while it waited for an object"))

    def _supply(self) -> Want | None:
        """The next object to ask for; None if there is none, or no room."""
        with self._lock:
            while True:
                if self._next and (self._next[0].issued or self._next[0].done):
                    self._next.popleft()
                    continue
                if self._next:
                    break
                if self._broken or self._ahead >= max(
                    _BATCHES_AHEAD * self._batch_rows, _ROUNDS_AHEAD * self._limit.now
                ):
                    self._rest()
                    return None
                self._plan()
            nbytes = int(self._listed.sizes[self._next[0].row])
            if self._ahead_bytes and self._ahead_bytes + nbytes > self._budget_bytes:
                self._rest()
                return None
            want = self._next.popleft()
            want.nbytes = nbytes
            self._ahead_bytes += nbytes
            return want

    def _rest(self) -> None:
        """Ask for nothing until a quarter of what is ahead was used: waking a thread costs as much as a small image."""
        self._resume_at = self._ahead - max(1, self._ahead // _SHARE_USED)

    def _plan(self) -> None:
        """Look up one more batch; the lock is held."""
        try:
            place, rows = next(self._batches)
        except Exception as error:  # noqa: BLE001  belongs to whoever asks for a batch
            self._broken = error
            return
        self._planned[place] = planned = self._look_up(rows)
        self._next.extend(want for want in planned.wants.values() if not want.done)
        self._batch_rows = max(self._batch_rows, len(rows))

    def _look_up(self, rows: Ints) -> Planned:
        """What of a batch has to be asked for; the lock is held."""
        self._ahead += len(rows)
        if self._cache is None:
            return Planned(rows, {at: self._want(row) for at, row in enumerate(rows.tolist())})
        lacking = set(self._cache.lacking(rows).tolist()) | set(rows[self._listed.sizes[rows] == 0].tolist())
        wants = {at: self._want(row) for at, row in enumerate(rows.tolist()) if row in lacking} if lacking else {}
        self._counters.add("cache_hits", len(rows) - len(wants))
        self._counters.add("cache_misses", len(wants))
        return Planned(rows, wants)

    def _want(self, row: int) -> Want:
        want = Want(row, 0)
        empty = self._listed.empty(row)
        if empty is not None:
            want.finish(error=empty)
        return want
