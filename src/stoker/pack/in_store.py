"""Objects of a store for a plan: listed, and read in parts, many at once."""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import IO, Any
from urllib.parse import unquote

import numpy as np

from stoker.errors import NoDataError
from stoker.loader.source import listing, paths
from stoker.loader.source.tier import Store, Tier
from stoker.pack.plan import SourceFile, stored_stamp
from stoker.pack.ranged import Ranged

_AT_ONCE = 256
"""Objects whose beginnings, or ends, are in memory at once."""
_WHOLE_AT_ONCE = 8


class InStore:
    """Objects of a store."""

    def __init__(self, store: Store) -> None:
        self.listed = store.listed
        self._tier = Tier(store, "pack")
        self.names = [self.listed.address(row) for row in range(len(self.listed))]
        self._rows = {name: row for row, name in enumerate(self.names)}

    def nbytes(self, name: str) -> int:
        """The size of an object."""
        return self.listed.object_bytes(self._rows[name])

    def file(self, name: str, rows: int | None) -> SourceFile:
        """An object as it was listed."""
        size = self.nbytes(name)
        return SourceFile(name, size, rows, stored_stamp(size, self.listed.tag(self._rows[name])))

    @contextmanager
    def open(self, name: str) -> Iterator[IO[bytes]]:
        """An object, of which only what is read is brought."""
        with self._opened(name, []) as file:
            yield file

    def _opened(self, name: str, parts: list[tuple[int, Any]]) -> IO[bytes]:
        return io.BufferedReader(Ranged(self.nbytes(name), partial(self._range, name), parts))

    def _range(self, name: str, start: int, stop: int) -> Any:
        return self._ranges([(self._rows[name], start, stop)])[0]

    def _ranges(self, ranges: list[tuple[int, int, int]]) -> list[Any]:
        found = self._tier.heads(ranges)
        for one in found:
            if isinstance(one, BaseException):
                raise one
        return found

    def each(self, *, first: int = 0, last: int = 0) -> Iterator[tuple[str, IO[bytes]]]:
        """All objects; the beginnings, or ends, of many are asked for at once."""
        for at in range(0, len(self.names), _AT_ONCE):
            some = self.names[at : at + _AT_ONCE]
            spans = {name: self._end(name, first, last) for name in some if self.nbytes(name)}
            parts = dict(zip(spans, self._ranges(list(spans.values())), strict=True))
            for name in some:
                with self._opened(name, [(spans[name][1], parts.pop(name))] if name in parts else []) as file:
                    yield name, file

    def _end(self, name: str, first: int, last: int) -> tuple[int, int, int]:
        """The range of an object's first bytes, or of its last ones."""
        size = self.nbytes(name)
        return self._rows[name], max(0, size - last) if last else 0, size if last else min(size, first)

    def read(self, names: Sequence[str]) -> Iterator[Any]:
        """The whole content of some objects, verified; a few are asked for at once."""
        for at in range(0, len(names), _WHOLE_AT_ONCE):
            some = names[at : at + _WHOLE_AT_ONCE]
            full = [name for name in some if self.nbytes(name)]
            found = dict(zip(full, self._ranges([(self._rows[one], 0, self.nbytes(one)) for one in full]), strict=True))
            yield from (found.pop(name, b"") for name in some)


def find(given: Sequence[str], suffixes: Sequence[str], *, any_case: bool = False) -> InStore:
    """The objects of some kinds at addresses, in folders, or that match patterns; all of one store."""
    root, names = listing.root_of(paths.addresses(given))
    store = listing.opened(root, "pack", names)
    keys = store.listed.keys.to_pylist()
    is_meant = listing.meant(names)
    ends = tuple(suffixes)
    rows = [row for row, key in enumerate(keys) if (key.lower() if any_case else key).endswith(ends) and is_meant(key)]
    if not rows:
        raise NoDataError(f"no object matches {', '.join(given)}; expected {', '.join(suffixes)}")
    listed = store.listed.take(np.array(rows, np.int64))
    # An address of a folder is a URL, in which %20 is a blank; a key is as it is, and so is what a plan names.
    return InStore(replace(store, listed=replace(listed, url=unquote(root))))
