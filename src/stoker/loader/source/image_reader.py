"""Batches of images: decoded by as many threads as there are cores, straight into the batch's buffer."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from stoker.errors import ClosedError, DataError
from stoker.loader.cores import use_one_core
from stoker.loader.source import augment
from stoker.loader.source.blocks import Ints
from stoker.loader.source.decode import Decoder, Pixels, Strip
from stoker.loader.source.interface import BadRowsError, Batch, Lease, Pick
from stoker.loader.source.manifest import Manifest
from stoker.loader.source.objects import Objects, Take

_THREADS = "stoker-decode"
_PIECE_IMAGES, _PIECE_BYTES = 16, 1 << 16
"""What a thread takes at once, at most, of encoded images."""


class ImageReader:
    """Decodes batches, each by as many threads as there are cores, straight into the batch's buffer."""

    def __init__(self, manifest: Manifest, labels: Ints, decoder: Decoder, objects: Objects, threads: int) -> None:
        self._manifest, self._labels, self._decoder, self._objects = manifest, labels, decoder, objects
        self._threads = threads
        self._closed = False
        self._pool = ThreadPoolExecutor(threads, _THREADS, initializer=use_one_core) if threads > 1 else None

    def gather(self, pick: Pick, lease: Lease) -> Batch:
        """The images of a batch, their labels and keys."""
        rows = pick.rows
        images, _ = lease(len(rows), (3, *self._decoder.size), np.dtype(np.uint8))
        cuts = pieces(self._manifest.sizes[rows], self._threads)
        numbers, strip = augment.draw(pick.place, rows), partial(Strip, self._decoder, images)
        work = _Work(self, strip, self._objects.batch(pick.place, rows), numbers, rows, cuts)
        if self._pool is None:
            work.run()
        else:
            try:
                for done in [self._pool.submit(work.run) for _ in range(min(self._threads, len(cuts) - 1))]:
                    done.result()
            except RuntimeError as error:
                if self._closed:
                    raise ClosedError("the loader was closed while a batch was made") from error
                raise
        if work.failed:
            raise BadRowsError(dict(sorted(work.failed.items())))
        labels, _ = lease(len(rows), (), np.dtype(np.int64))
        labels.copy_(torch.from_numpy(self._labels[rows]))
        return {"image": images, "label": labels, "key": self._manifest.keys.take(rows).to_pylist()}

    def part(self, data: Any, row: int, numbers: Any) -> Pixels:
        """One image, decoded and cut."""
        if self._closed:
            raise ClosedError("the loader was closed while a batch was made")
        return self._decoder.part(data, numbers, lambda: self._manifest.address(row))

    def close(self) -> None:
        """End the threads."""
        self._closed = True
        self._objects.close()
        if self._pool is not None:
            # A garbage collection can call this in one of the pool's own threads.
            inside = threading.current_thread().name.startswith(_THREADS)
            self._pool.shutdown(wait=not inside, cancel_futures=True)


class _Work:
    """One batch, for any number of threads: each takes the next few images that nobody has."""

    def __init__(
        self, reader: ImageReader, strip: Callable[[], Strip], take: Take, numbers: Any, rows: Ints, cuts: list[int]
    ) -> None:
        self._reader, self._strip, self._take = reader, strip, take
        self._numbers, self._rows = numbers, rows.tolist()
        self._pieces = iter(list(pairwise(cuts)))
        self._stopped = False
        self.failed: dict[int, DataError] = {}

    def run(self) -> None:
        strip = self._strip()
        for start, stop in self._pieces:
            if self._stopped:
                return
            try:
                read = self._take(start, stop)
                for at in range(start, stop):
                    self._add(strip, at, read)
                strip.flush()
            except BaseException:
                self._stopped = True
                raise

    def _add(self, strip: Strip, at: int, read: Callable[[int], Any]) -> None:
        try:
            part = self._reader.part(read(at), self._rows[at], self._numbers[at])
        except DataError as error:
            self.failed[at] = error
        else:
            strip.add(at, part, self._numbers[at])


def pieces(sizes: Ints, threads: int) -> list[int]:
    """Where a batch is cut for its threads: large images one by one, small ones several at once, all threads busy."""
    most = max(1, min(_PIECE_IMAGES, len(sizes) // (2 * max(1, threads))))
    cuts, start, nbytes = [0], 0, 0
    for at, size in enumerate(sizes.tolist()):
        if at > start and (at - start >= most or nbytes + size > _PIECE_BYTES):
            cuts.append(at)
            start, nbytes = at, 0
        nbytes += size
    return [*cuts, len(sizes)] if len(sizes) else cuts
