"""Batches of images: decoded by as many threads as there are cores, straight into the batch's buffer."""

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import numpy as np
import torch

from stoker.errors import ClosedError, DataError
from stoker.loader.cores import use_one_core
from stoker.loader.scratch import of_thread
from stoker.loader.source import augment
from stoker.loader.source.blocks import Ints
from stoker.loader.source.decode import Decoder
from stoker.loader.source.interface import BadRowsError, Batch, Lease, Pick
from stoker.loader.source.manifest import Manifest
from stoker.loader.source.objects import Objects, Take

_THREADS = "stoker-decode"


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
        work = _Work(self, images, self._objects.batch(pick.place, rows), augment.draw(pick.place, rows), rows)
        if self._pool is None:
            work.run()
        else:
            try:
                for done in [self._pool.submit(work.run) for _ in range(min(self._threads, len(rows)))]:
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

    def decode(self, out: torch.Tensor, take: Take, at: int, row: int, numbers: Any) -> None:
        """One image."""
        if self._closed:
            raise ClosedError("the loader was closed while a batch was made")
        self._decoder.into(out, take(at, of_thread("read")), numbers, lambda: self._manifest.address(row))

    def close(self) -> None:
        """End the threads."""
        self._closed = True
        self._objects.close()
        if self._pool is not None:
            # A garbage collection can call this in one of the pool's own threads.
            inside = threading.current_thread().name.startswith(_THREADS)
            self._pool.shutdown(wait=not inside, cancel_futures=True)


class _Work:
    """One batch, for any number of threads: each takes the next image that nobody has."""

    def __init__(self, reader: ImageReader, images: torch.Tensor, take: Take, numbers: Any, rows: Ints) -> None:
        self._reader, self._images, self._take = reader, images, take
        self._numbers, self._rows = numbers, rows
        self._next = count()
        self._stopped = False
        self.failed: dict[int, DataError] = {}

    def run(self) -> None:
        images, rows = self._images, self._rows
        for at in self._next:
            if at >= len(rows) or self._stopped:
                return
            try:
                self._reader.decode(images[at], self._take, at, int(rows[at]), self._numbers[at])
            except DataError as error:
                self.failed[at] = error
            except BaseException:
                self._stopped = True
                raise
