"""Images, one object each: `image` (uint8: 3, height, width), `label` (int64) and `key`; local or in a store."""

import hashlib
import weakref
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from stoker.errors import UsageError
from stoker.loader.cache import Cache, Shelf
from stoker.loader.source.ahead import Ahead
from stoker.loader.source.blocks import EvenBlocks, Ints
from stoker.loader.source.counters import Counters, figures
from stoker.loader.source.decode import Decoder
from stoker.loader.source.image_reader import ImageReader
from stoker.loader.source.interface import Batch, Field, Lease, Pick, Place, Reader, RemoteFigures, Source
from stoker.loader.source.limit import Limit
from stoker.loader.source.manifest import Manifest, short_digest
from stoker.loader.source.objects import LocalObjects, Objects, RemoteObjects
from stoker.loader.source.remote import Remote
from stoker.loader.source.shrink import shrunk
from stoker.loader.source.stage import Staged, reserve, stage
from stoker.loader.source.subset import Part, Subset, choose


class ImageSource(Source):
    """Images below a folder or an address. Each is a block of its own, so that a shuffle is uniform."""

    kind = "images"

    def __init__(
        self,
        manifest: Manifest,
        labels: Ints,
        classes: tuple[str, ...],
        *,
        decoder: Decoder,
        remote: Remote | None = None,
        requests: int | None = None,
        hedge: bool = True,
    ) -> None:
        self.manifest, self.labels, self.classes = manifest, labels, classes
        self.decoder = decoder
        self._remote = remote
        self._how = {"requests": requests, "hedge": hedge}
        self._cache: Cache | None = None
        self._shelf: Shelf | None = None
        self._cache_bytes = 0
        self._side: int | None = None
        self.staged: Staged | None = None
        """What `stage` did, for a source that it returned."""
        self._limit, self._counters = Limit(requests, hedge=hedge), Counters()
        self.blocks = EvenBlocks(len(manifest), 1)
        self.fields = (
            Field("image", np.dtype(np.uint8), (3, *decoder.size)),
            Field("label", np.dtype(np.int64)),
            Field("key", np.dtype(object), text=True),
        )
        self.row_bytes = float(3 * decoder.size[0] * decoder.size[1] + 8)
        self._readers: weakref.WeakSet[ImageReader] = weakref.WeakSet()

    def attach(self, shelf: Shelf, cache: Cache, cache_bytes: int, side: int | None = None) -> None:
        """Use a cache from now on, which keeps images with this shorter side."""
        self._shelf, self._cache, self._cache_bytes, self._side = shelf, cache, cache_bytes, side

    def reader(self, ahead: Iterator[tuple[Place, Ints]], *, memory_bytes: int, threads: int) -> Reader:
        """A stream's own requests and decoding threads."""
        objects = self._objects(ahead, memory_bytes)
        reader = ImageReader(self.manifest, self.labels, self.decoder, objects, threads)
        self._readers.add(reader)
        return reader

    def _objects(self, ahead: Iterator[tuple[Place, Ints]], memory_bytes: int) -> Objects:
        if self._remote is None:
            return LocalObjects(self.manifest)
        return RemoteObjects(self._ahead(ahead, memory_bytes), self._cache)

    def stage(self, subset: Part = None, *, seed: int = 0, samples_per_s: float | None = None) -> "ImageSource":
        """Copy a subset into the cache ahead of time, and return it as a source of its own.

        `subset` is a share (0.1), a number of images (5000) or a list of classes; the same `seed` chooses the same
        images everywhere. What is there already is verified and not copied again. Progress, size, time and the
        break-even are told on stderr, and kept as `staged` of the source that is returned. `samples_per_s`, what the
        training can use, makes the break-even one for that training.
        """
        if self._remote is None or self._shelf is None or self._cache is None or self.staged is not None:
            raise UsageError("stage copies from a store into a cache; open the whole source with cache='directory'")
        rows = choose(self.manifest, Subset(subset, seed))
        self._cache.keep = reserve(self._shelf, self.manifest, rows, Subset(subset, seed), self._cache_bytes)
        staged = stage(rows, self.manifest, self._cache, self._ahead, self._shelf.root, samples_per_s)
        part = ImageSource(
            self.manifest.take(rows), self.labels[rows], self.classes, decoder=self.decoder, remote=self._remote
        )
        cache = Cache(self._shelf, part.manifest, np.ones(len(rows), bool))
        part.attach(self._shelf, cache, self._cache_bytes, self._side)
        part.staged = staged
        return part

    def _ahead(self, along: Iterator[tuple[Place, Ints]], memory_bytes: int) -> Ahead:
        assert self._remote is not None
        return Ahead(
            self._remote,
            self.manifest,
            self._cache,
            along,
            limit=self._limit,
            counters=self._counters,
            budget_bytes=memory_bytes,
            prepare=None if self._side is None else self._shrink,
        )

    def _shrink(self, row: int, data: Any) -> Any:
        assert self._side is not None
        return shrunk(data, self._side, self.manifest.address(row))

    def gather(self, pick: Pick, lease: Lease) -> Batch:
        """A batch on its own, without reading ahead."""
        reader = self.reader(iter([(pick.place, pick.rows)]), memory_bytes=1 << 28, threads=1)
        try:
            return reader.gather(pick, lease)
        finally:
            reader.close()

    def locate(self, row: int) -> tuple[str, int]:
        """The object of a row; it is the only one in it."""
        return self.manifest.address(row), 0

    def paths(self) -> list[str]:
        """The images' addresses."""
        return [self.manifest.address(row) for row in range(len(self))]

    def file_starts(self) -> Ints:
        """Every image is a file."""
        return np.arange(len(self) + 1)

    def fingerprint(self) -> dict[str, Any]:
        """The listing, the labels and the size. Where the data lies does not count."""
        size, kept = self.decoder.size, "" if self._side is None else f" side={self._side}"
        return {
            "kind": self.kind,
            "schema": f"image {size[0]}x{size[1]} crop={self.decoder.crop} flip={self.decoder.flip}{kept}",
            "files": len(self),
            "bytes": int(self.manifest.sizes.sum()),
            "rows": len(self),
            "digest": self._digest,
        }

    @cached_property
    def _digest(self) -> str:
        return short_digest(self.manifest.digest(), hashlib.sha256(self.labels.tobytes()).hexdigest())[:32]

    def remote(self) -> RemoteFigures | None:
        """What reading from the store took."""
        if self._remote is None:
            return None
        return figures(self._limit, self._counters, self._cache, self.manifest.sizes)

    def __getstate__(self) -> dict[str, Any]:
        held = None
        if self._shelf is not None and self._cache is not None:
            place = (self._shelf.root, self._shelf.url, self._shelf.form)
            held = {"shelf": place, "keep": self._cache.keep, "cache_bytes": self._cache_bytes, "side": self._side}
        return {
            "listed": (self.manifest, self.labels, self.classes),
            "options": {"decoder": self.decoder, "remote": self._remote, **self._how},
            "told": {"skipped": self.skipped, "staged": self.staged},
            "cache": held,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(*state["listed"], **state["options"])  # type: ignore[misc]
        self.__dict__.update(state["told"])
        if (held := state["cache"]) is not None:
            shelf = Shelf(*held["shelf"])
            self.attach(shelf, Cache(shelf, self.manifest, held["keep"]), held["cache_bytes"], held["side"])

    def describe(self) -> Mapping[str, Any]:
        """For people: kind, images, classes."""
        return {**super().describe(), "bytes": int(self.manifest.sizes.sum()), "classes": self.classes}

    def close(self) -> None:
        """End threads and requests."""
        for reader in list(self._readers):
            reader.close()
