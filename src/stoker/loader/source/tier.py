"""A store below a source of blocks: small pieces read when it is opened, the blocks' own as windows are entered."""

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from stoker.errors import ClosedError, UsageError
from stoker.loader.cache import Cache, Shelf, disk_bytes, kept
from stoker.loader.scratch import Scratch
from stoker.loader.source.ahead import Ahead
from stoker.loader.source.blocks import Ints
from stoker.loader.source.counters import Counters, figures
from stoker.loader.source.interface import Batch, Lease, Pick, Place, Reader, RemoteFigures, Source
from stoker.loader.source.limit import Limit
from stoker.loader.source.manifest import Manifest
from stoker.loader.source.pieces import Listed, Pieces
from stoker.loader.source.pull import AHEAD_BYTES, Pull, fetched
from stoker.loader.source.remote import Remote
from stoker.loader.source.stage import Staged, stage
from stoker.loader.source.subset import Part, Subset, choose

_AHEAD_SHARE = 8
"""Of what a source that reads ahead may hold, blocks that are no blocks yet take so small a part."""

Range = tuple[int, int, int]
"""Object, start and stop."""


@dataclass(frozen=True, slots=True)
class Store:
    """Where a source's objects are, and how they are asked for and kept."""

    remote: Remote
    listed: Manifest
    requests: int | None = None
    hedge: bool = True
    cache: str | None = None
    """The directory of the cache; None: nothing is kept."""
    cache_bytes: int | None = None
    fresh: bool = False
    """The listing was made now, so that something may have changed."""
    chosen: str = ""
    """What of all that lies there was asked for: each choice has its own part of the cache's budget."""


class Tier:
    """The pieces of one source. Threads of a source share it; requests are made while a stream is open."""

    def __init__(self, store: Store, form: str) -> None:
        """`form` tells what its pieces are from those of other sources below the same address."""
        self.store, self._form = store, form
        self._limit, self._counters = Limit(store.requests, hedge=store.hedge), Counters()
        self._pieces: Listed = store.listed
        self._cache: Cache | None = None
        self._is_stopped = False
        self._forget()

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.RLock()  # a garbage collection can close a stream from inside
        self._pull: Pull | None = None
        self._streams = self._helpers = 0

    def heads(self, ranges: Iterable[Range]) -> list[Any]:
        """Small pieces at once: the bytes of each, or the error."""
        pieces = Pieces.of(self.store.listed, ranges)
        cache = self._shelved(pieces, f"{self._form}, heads")
        return fetched(self.store.remote, pieces, cache, limit=self._limit, counters=self._counters)

    def ends(self, rows: Sequence[int], *, first_bytes: int, needs: Callable[[bytes], int], last: bool) -> list[Any]:
        """The beginning of each object, or its `last` bytes: as many as they say that it `needs`; or the error."""
        sizes = self.store.listed.sizes[np.asarray(rows, np.int64)].tolist()
        found: list[Any] = [b"" for _ in rows]
        wanted = {at: min(size, first_bytes) for at, size in enumerate(sizes) if size}
        while wanted:
            starts = {at: sizes[at] - count if last else 0 for at, count in wanted.items()}
            got = self.heads((rows[at], starts[at], starts[at] + count) for at, count in wanted.items())
            for at, part in zip(wanted, got, strict=True):
                found[at] = part if isinstance(part, BaseException) else bytes(part)
            needed = {at: needs(found[at]) for at in wanted if isinstance(found[at], bytes)}
            wanted = {at: count for at, count in needed.items() if wanted[at] < count <= sizes[at]}
        return found

    def lay_out(self, pieces: Listed) -> None:
        """From now on, pieces are these."""
        self._pieces = pieces
        self._cache = self._shelved(pieces, self._form)

    def _shelved(self, pieces: Listed, form: str) -> Cache | None:
        """The cache of some pieces, and its part of the budget."""
        if self.store.cache is None:
            return None
        shelf = Shelf(self.store.cache, self.store.remote.url, f"{form}: {self.store.chosen}")
        with shelf.alone():
            before = int(shelf.note().get("reserved_bytes", 0))
            budget = shelf.budget_bytes() if self.store.cache_bytes is None else self.store.cache_bytes
            wanted = disk_bytes(pieces.sizes)
            granted = shelf.reserve(wanted, budget)
        cache = Cache(shelf, pieces, kept(pieces, granted))
        if self.store.fresh or granted < max(before, wanted):
            cache.evict(granted)
        return cache

    def soon(self, pieces: Sequence[int]) -> None:
        """These will be taken."""
        self._opened().soon(pieces)

    def take(self, piece: int, scratch: Scratch | None = None) -> Any:
        """The bytes of a piece; the caller's own, unless a scratch memory is given that they may lie in."""
        return self._opened().take(piece, scratch or Scratch())

    def _opened(self) -> Pull:
        pull = self._pull
        if pull is None or self._pid != os.getpid():
            raise ClosedError("the loader was closed while a block was read")
        return pull

    def open(self, memory_bytes: int) -> None:
        """A stream begins: requests may be made until it closes."""
        with self._here():
            self._streams += 1
            self._started().budget_bytes = min(AHEAD_BYTES, memory_bytes // _AHEAD_SHARE)

    def close(self) -> None:
        """A stream is over; with the last one all requests end, and whoever waits for one is told."""
        with self._here():
            self._streams -= 1
            over = self._over() if self._streams == 0 else None
        if over is not None:
            over.close()

    def stop(self) -> None:
        """End all requests for good, whoever holds it open: they are told."""
        with self._here():
            self._is_stopped = True
            over = self._over()
        if over is not None:
            over.close()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Open for what follows, also where no stream is."""
        with self._here():
            self._helpers += 1
            self._started()
        try:
            yield
        finally:
            with self._here():
                self._helpers -= 1
                over = self._over() if self._helpers == self._streams == 0 else None
            if over is not None:
                over.close()

    def _here(self) -> threading.RLock:
        """The lock; of this process: threads of another one stayed there."""
        if self._pid != os.getpid():
            self._forget()
        return self._lock

    def _started(self) -> Pull:
        if self._is_stopped:
            raise ClosedError("the loader was closed before a block was read")
        if self._pull is None:
            self._pull = Pull(self.store.remote, self._pieces, self._cache, limit=self._limit, counters=self._counters)
        return self._pull

    def _over(self) -> Pull | None:
        pull, self._pull = self._pull, None
        return pull

    def stage(self, samples: int, samples_per_s: float | None) -> Staged:
        """Copy every piece into the cache, which must be there and hold them all; together they are so many samples."""
        cache, pieces = self._cache, self._pieces
        if cache is None or self.store.cache is None:
            raise UsageError("stage copies from a store into a cache; open it with cache='directory'")
        if not cache.keep.all():
            raise UsageError(
                f"{disk_bytes(pieces.sizes) / 1e6:,.1f} MB are to be staged, which is more than the cache may take; "
                "stage a smaller subset, raise cache_bytes, or delete what else it holds"
            )
        each = samples / max(1, len(pieces))
        return stage(
            np.arange(len(pieces)), pieces, cache, self._reads, Path(self.store.cache), samples_per_s,
            noun="pieces", samples=each,
        )  # fmt: skip

    def _reads(self, along: Iterator[tuple[Place, Ints]], budget_bytes: int) -> Ahead:
        return Ahead(
            self.store.remote, self._pieces, self._cache, along,
            limit=self._limit, counters=self._counters, budget_bytes=budget_bytes,
        )  # fmt: skip

    def figures(self) -> RemoteFigures:
        """What reading took."""
        return figures(self._limit, self._counters, self._cache, np.asarray(self._pieces.sizes))


def subset_of(store: Store, part: Part, seed: int) -> Store:
    """Some of the objects, the same ones for the same seed."""
    if part is None:
        return store
    rows = choose(store.listed, Subset(part, seed))
    return replace(store, listed=store.listed.take(rows), chosen=f"{store.chosen}, {part!r} of seed {seed}")


class TierReader:
    """A stream's hold on the tiers of its source."""

    def __init__(self, source: Source, tiers: Sequence[Tier], memory_bytes: int) -> None:
        self._source = source
        self._tiers = list(tiers)
        for tier in tiers:
            tier.open(memory_bytes // len(tiers))

    def gather(self, pick: Pick, lease: Lease) -> Batch:
        """As the source does: its blocks are loaded."""
        return self._source.gather(pick, lease)

    def close(self) -> None:
        """The stream is over; safe to call twice."""
        while self._tiers:
            self._tiers.pop().close()


class OfTier:
    """What all sources of tables in a store have in common; each has a `store` and `_options`, and makes its tier."""

    store: Store
    _tier: Tier
    _options: dict[str, Any]
    staged: Staged | None = None
    """What `stage` did, for a source that it returned."""

    def reader(self, ahead: Iterator[tuple[Place, Ints]], *, memory_bytes: int, threads: int) -> Reader:
        """Holds the store open for a stream."""
        assert isinstance(self, Source)
        return TierReader(self, [self._tier], memory_bytes)

    def remote(self) -> RemoteFigures:
        """What reading from the store took."""
        return self._tier.figures()

    def stage(self, subset: Part = None, *, seed: int = 0, samples_per_s: float | None = None) -> Any:
        """Copy it, or a subset of its objects, into the cache ahead of time; returns that as a source of its own.

        `subset` is a share (0.1), a number of objects or a list of their first directories; the same `seed` chooses
        the same ones everywhere. Progress, size, time and the break-even are told on stderr, and kept as `staged`.
        """
        kind: Any = type(self)
        part = kind(subset_of(self.store, subset, seed), **self._options)
        part.staged = part._tier.stage(len(part), samples_per_s)  # noqa: SLF001  its own kind
        return part

    def __getstate__(self) -> dict[str, Any]:
        return {"store": self.store, "options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        kind: Any = self
        kind.__init__(state["store"], **state["options"])
