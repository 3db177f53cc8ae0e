"""Pieces of a store's objects for a source of blocks: asked for when a window is entered, taken block by block."""

import threading
from collections import deque
from collections.abc import Iterable
from contextlib import closing
from typing import Any

import numpy as np

from stoker.errors import ClosedError
from stoker.loader import hold
from stoker.loader.cache import Cache
from stoker.loader.scratch import Scratch
from stoker.loader.source.counters import Counters
from stoker.loader.source.limit import Limit
from stoker.loader.source.pieces import Listed
from stoker.loader.source.remote import Remote
from stoker.loader.source.transfer import Transfer, Want

AHEAD_BYTES = 64 << 20
"""What may be under way, or here and not taken, unless somebody waits for more."""
_WINDOWS = 4
"""What came and was not taken while so many windows were entered may be for a stream that is gone."""


class Pull:
    """Pieces on their way. Any number of threads say what they need `soon`, and `take` it."""

    def __init__(
        self, remote: Remote, listed: Listed, cache: Cache | None, *, limit: Limit, counters: Counters
    ) -> None:
        self._listed, self._cache, self._counters = listed, cache, counters
        self._files = None if cache is None else cache.files()
        self._lock = threading.RLock()  # a garbage collection can close it from inside
        self._wants: dict[int, Want] = {}
        self._entered: dict[int, int] = {}
        """By piece: the number of the window that it was last wanted for."""
        self._next: deque[Want] = deque()
        self._window = 0
        self._ahead_bytes = 0
        self._taken: dict[int, Want] = {}
        """By piece: what somebody waits for now; whoever takes it too waits for the same."""
        self._closed = False
        self.budget_bytes = AHEAD_BYTES
        self._transfer = Transfer(remote, listed, cache, limit=limit, counters=counters, supply=self._supply)

    def soon(self, rows: Iterable[int]) -> None:
        """These pieces will be taken, in this order."""
        wanted = np.fromiter(dict.fromkeys(rows), np.int64)
        lacking = wanted if self._cache is None else self._cache.lacking(wanted)
        with self._lock:
            self._window += 1
            for row in lacking.tolist():
                if row in self._taken:
                    continue
                if row not in self._wants:
                    self._wants[row] = want = Want(row, 0)
                    self._next.append(want)
                self._entered[row] = self._window
        self._transfer.wake()

    def take(self, row: int, scratch: Scratch) -> Any:
        """The bytes of a piece, as soon as they are here; what the cache has is read into `scratch`."""
        with self._lock:
            is_coming = row in self._wants or row in self._taken
        if not is_coming and self._cache is not None:
            is_there = self._cache.has(row)
            self._counters.add("cache_hits" if is_there else "cache_misses")
            if is_there and (data := self._kept(row, scratch)) is not None:
                return data
        elif self._cache is not None:
            self._counters.add("cache_misses")
        return self._wait(row, scratch)

    def _wait(self, row: int, scratch: Scratch) -> Any:
        """Ask for it, unless that is done; again if it vanished from the cache before it was read."""
        while True:
            want = self._joined(row)
            try:
                self._transfer.wake()  # there is room for another one
                if not want.issued and not want.done:
                    self._transfer.hurry(want)
                if self._closed:
                    self._abandon()
                data = self._came(want)
            finally:
                self._part(want)
            if data is None:  # another process brought it
                data = self._kept(row, scratch)
            if data is not None:
                return data

    def _joined(self, row: int) -> Want:
        """The want of a piece for one more taker: the one that others wait for, that was asked for ahead, or new."""
        with self._lock:
            want = self._taken.get(row)
            if want is None or (want.done and want.data is None):
                want = self._wants.get(row) or Want(row, 0)
                self._drop(row)
                self._taken[row] = want
            want.takers += 1
            return want

    def _part(self, want: Want) -> None:
        with self._lock:
            want.takers -= 1
            if not want.takers:
                want.data = None  # it may still stand in the queue
                if self._taken.get(want.row) is want:
                    del self._taken[want.row]

    @staticmethod
    def _came(want: Want) -> Any:
        """Its bytes once they are here; the stream that the thread works for may be closed before."""
        if not want.done:
            event = threading.Event()
            with hold.of_thread().waiting(event):
                want.sleep(event)
        if not want.done:
            raise ClosedError("the loader was closed while it waited for an object")
        return want.wait()

    def _kept(self, row: int, scratch: Scratch) -> Any:
        assert self._cache is not None
        assert self._files is not None
        return self._cache.read(row, scratch, self._files)

    def _drop(self, row: int) -> None:
        """It is nobody's but the caller's any more; the lock is held."""
        want = self._wants.pop(row, None)
        self._entered.pop(row, None)
        if want is not None:
            self._ahead_bytes -= want.nbytes
            want.nbytes = 0

    def _supply(self) -> Want | None:
        """The next piece to ask for; None if there is none, or no room."""
        with self._lock:
            while self._next:
                want = self._next[0]
                if want.issued or want.done or self._wants.get(want.row) is not want:
                    self._next.popleft()
                    continue
                nbytes = int(self._listed.sizes[want.row])
                if self._is_full(nbytes):
                    self._forget_old()
                if self._is_full(nbytes):
                    return None
                self._next.popleft()
                want.nbytes = nbytes
                self._ahead_bytes += nbytes
                return want
            return None

    def _is_full(self, nbytes: int) -> bool:
        return bool(self._ahead_bytes) and self._ahead_bytes + nbytes > self.budget_bytes

    def _forget_old(self) -> None:
        """Make room: what has come, and was not taken since, nobody waits for."""
        old = [row for row, window in self._entered.items() if window <= self._window - _WINDOWS]
        for row in old:
            if self._wants[row].done:
                self._drop(row)

    def close(self) -> None:
        """End all requests; whoever waits is told."""
        inside = self._lock._is_owned()  # type: ignore[attr-defined]  # noqa: SLF001  the requests' thread may wait for it
        self._closed = True
        self._transfer.close(join=not inside)
        self._abandon()
        if self._files is not None:
            self._files.close()

    def _abandon(self) -> None:
        with self._lock:
            waited = [want for want in self._taken.values() if not want.done]
        for want in waited:
            want.finish(error=ClosedError("the loader was closed while it waited for an object"))


def fetched(remote: Remote, listed: Listed, cache: Cache | None, *, limit: Limit, counters: Counters) -> list[Any]:
    """All of a few small pieces, or the error of each that cannot be had."""
    found: list[Any] = []
    with closing(Pull(remote, listed, cache, limit=limit, counters=counters)) as pull:
        pull.soon(range(len(listed)))
        for row in range(len(listed)):
            try:
                found.append(pull.take(row, Scratch()))
            except Exception as error:  # noqa: BLE001  belongs to whoever opens this one
                found.append(error)
    return found
