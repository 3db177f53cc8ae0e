"""Where the bytes of images come from: files of this machine, or objects of a store that are asked for ahead."""

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

from stoker.errors import EmptyFileError, TruncatedError, VanishedError
from stoker.loader.cache import Cache
from stoker.loader.scratch import of_thread
from stoker.loader.source.ahead import Ahead
from stoker.loader.source.blocks import Ints
from stoker.loader.source.files import read_files
from stoker.loader.source.interface import Place
from stoker.loader.source.manifest import Manifest
from stoker.loader.source.transfer import Want

Take = Callable[[int, int], Callable[[int], Any]]
"""Brings the images from the i-th to before the j-th of a batch, and gives what tells the bytes of each of them, in
memory of the calling thread or not."""


class Objects(Protocol):
    """Where the bytes of images come from, batch by batch."""

    def batch(self, place: Place, rows: Ints) -> Take:
        """What gives the batch's images."""

    def close(self) -> None:
        """Stop reading ahead."""


class LocalObjects:
    """Files below a folder."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest

    def batch(self, place: Place, rows: Ints) -> Take:
        """What reads the batch's files."""
        return partial(self._bring, self._manifest.addresses(rows), self._manifest.sizes[rows])

    @staticmethod
    def _bring(paths: Sequence[str], sizes: Ints, start: int, stop: int) -> Callable[[int], memoryview]:
        rooms = sizes[start:stop] + 1
        view = of_thread("read").room(int(rooms.sum()))
        got = read_files(paths[start:stop], rooms, view)
        begins = (np.cumsum(rooms) - rooms).tolist()

        def read(at: int) -> memoryview:
            path, size, came, begin = paths[at], int(sizes[at]), got[at - start], begins[at - start]
            if came < 0:
                raise VanishedError(path, f"the file cannot be read any more ({os.strerror(-came)})")
            if not came:
                raise EmptyFileError(path, "the file is empty; expected an image")
            if came < size:
                raise TruncatedError(path, f"was cut short while in use: {size} bytes were there, {came} are")
            return view[begin : begin + came]

        return read

    def close(self) -> None:
        """Nothing is read ahead: the system does."""


class RemoteObjects:
    """Objects of a store, asked for ahead along the order; from the cache where it has them."""

    def __init__(self, ahead: Ahead, cache: Cache | None) -> None:
        self._ahead, self._cache = ahead, cache
        self._files = None if cache is None else cache.files()

    def batch(self, place: Place, rows: Ints) -> Take:
        """What waits for the batch's objects, or reads them from the cache."""
        wants = self._ahead.batch(place, rows)

        def read(at: int) -> Any:
            want = wants.get(at)
            return self._cached(int(rows[at])) if want is None else self._take(want)

        def bring(_: int, stop: int) -> Callable[[int], Any]:
            # They are asked for in this order: whoever wakes for the last one need not wake for each.
            if (last := wants.get(stop - 1)) is not None:
                last.sleep()
            return read

        return bring

    def _take(self, want: Want) -> Any:
        try:
            data = want.wait()
            return self._cached(want.row) if data is None else data
        finally:
            self._ahead.used(want)

    def _cached(self, row: int) -> Any:
        assert self._cache is not None
        assert self._files is not None
        while (
            data := self._cache.read(row, of_thread("read"), self._files)
        ) is None:  # it was there, and is not, or is not as it should be
            fresh = self._ahead.again(row)
            try:
                data = fresh.wait()
            finally:
                self._ahead.used(fresh)
            if data is not None:
                return data
        return data

    def close(self) -> None:
        """End all requests."""
        self._ahead.close()
        if self._files is not None:
            self._files.close()
