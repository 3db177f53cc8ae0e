"""Where the bytes of images come from: files of this machine, or objects of a store that are asked for ahead."""

import os
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from stoker.errors import EmptyFileError, TruncatedError, VanishedError
from stoker.loader.cache import Cache
from stoker.loader.scratch import Scratch
from stoker.loader.source.ahead import Ahead
from stoker.loader.source.blocks import Ints
from stoker.loader.source.interface import Place
from stoker.loader.source.manifest import Manifest
from stoker.loader.source.transfer import Want


class Take(NamedTuple):
    """One batch's images."""

    read: Callable[[int, Scratch], Any]
    """Gives the bytes of the i-th one, in the scratch memory or not."""
    sleep: Callable[[int], None] = lambda _: None
    """Returns when the i-th one is here, or cannot be had."""


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
        return Take(lambda at, scratch: self._read(int(rows[at]), scratch))

    def _read(self, row: int, scratch: Scratch) -> memoryview:
        path, size = self._manifest.address(row), int(self._manifest.sizes[row])
        view = scratch.room(size + 1)
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise VanishedError(path, f"the file cannot be opened any more ({error.strerror})") from error
        try:
            got = os.readv(file, [view])
        finally:
            os.close(file)
        if not got:
            raise EmptyFileError(path, "the file is empty; expected an image")
        if got < size:
            raise TruncatedError(path, f"was cut short while in use: {size} bytes were there, {got} are")
        return view[:got]

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
        if not wants:
            return Take(lambda at, scratch: self._cached(int(rows[at]), scratch))

        def read(at: int, scratch: Scratch) -> Any:
            want = wants.get(at)
            return self._cached(int(rows[at]), scratch) if want is None else self._take(want, scratch)

        def sleep(at: int) -> None:
            if at in wants:
                wants[at].sleep()

        return Take(read, sleep)

    def _take(self, want: Want, scratch: Scratch) -> Any:
        try:
            data = want.wait()
            return self._cached(want.row, scratch) if data is None else data
        finally:
            self._ahead.used(want)

    def _cached(self, row: int, scratch: Scratch) -> Any:
        assert self._cache is not None
        assert self._files is not None
        while (
            data := self._cache.read(row, scratch, self._files)
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
