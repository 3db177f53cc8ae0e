"""Texts of a store: each is brought whole to a file of this machine, verified, for as long as it is read."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from stoker.errors import ChecksumError, DataError, NoDataError, UsageError
from stoker.loader.scratch import of_thread
from stoker.loader.source import listing
from stoker.loader.source.alone import no_room
from stoker.loader.source.manifest import short_digest
from stoker.loader.source.pieces import Pieces
from stoker.loader.source.tier import Range, Store, Tier

_PIECE_BYTES = 1 << 22
_AHEAD = 16
_ATTEMPTS = 3


class RemoteTexts:
    """Objects that are read once, from end to end."""

    def __init__(self, store: Store, kinds: Sequence[str], lost: Sequence[DataError] = ()) -> None:
        """`lost` are those that were named and cannot be brought."""
        self._store, self._kinds, self.lost = store, kinds, lost
        listed = store.listed
        self.addresses = [listed.address(row) for row in range(len(listed))]
        self._rows = {address: row for row, address in enumerate(self.addresses)}
        ranges: list[Range] = []
        self._pieces: list[range] = []
        for row, size in enumerate(listed.sizes.tolist()):
            before = len(ranges)
            ranges += [(row, at, min(size, at + _PIECE_BYTES)) for at in range(0, size, _PIECE_BYTES)]
            self._pieces.append(range(before, len(ranges)))
        self._tier = Tier(store, "texts")
        self._tier.lay_out(Pieces.of(listed, ranges))

    def nbytes(self, address: str) -> int:
        """The size of an object."""
        return self._store.listed.object_bytes(self._rows[address])

    def digest(self, address: str) -> str:
        """What changes when the object does, as far as its store says."""
        listed, row = self._store.listed, self._rows[address]
        return short_digest(address, listed.tag(row), str(listed.object_bytes(row)))

    @contextmanager
    def local(self, address: str, folder: Path) -> Iterator[str]:
        """The object as a file, which goes when it was read."""
        # The end of its name says how it is read; the rest may be anything.
        kind = max((one for one in self._kinds if address.endswith(one)), key=len)
        path = folder / f"incoming-{self.digest(address)[:16]}.partial-{os.getpid()}{kind}"
        try:
            self._bring(address, path)
            yield str(path)
        except DataError as error:
            if error.path != str(path):
                raise
            raise type(error)(address, error.reason, error.row) from error
        except UsageError as error:
            raise UsageError(str(error).replace(str(path), address)) from error
        finally:
            path.unlink(missing_ok=True)

    def kept(self, address: str, folder: Path) -> str:
        """The object as a file that stays."""
        path = folder / f"{self.digest(address)}{PurePosixPath(address).suffix}"
        if not path.exists():
            partial = path.with_name(f"{path.name}.partial-{os.getpid()}")
            try:
                self._bring(address, partial)
                partial.replace(path)
            finally:
                partial.unlink(missing_ok=True)
        return str(path)

    def _bring(self, address: str, path: Path) -> None:
        """Download it, again if what came is not what was listed."""
        listed, row = self._store.listed, self._rows[address]
        for attempt in range(_ATTEMPTS):
            with no_room(path.parent, address), self._tier.held():
                found = self._download(list(self._pieces[row]), path)
            if not listed.has_md5(row) or found == listed.tag(row):
                return
            if attempt == _ATTEMPTS - 1:
                raise ChecksumError(address, f"its MD5 is {found}; {listed.tag(row)} was listed")

    def _download(self, pieces: list[int], path: Path) -> str:
        """The MD5 of what came."""
        hashed = hashlib.md5(usedforsecurity=False)
        with path.open("wb") as file:
            for at in range(0, len(pieces), _AHEAD):
                self._tier.soon(pieces[at : at + 2 * _AHEAD])
                for piece in pieces[at : at + _AHEAD]:
                    data = self._tier.take(piece, of_thread("read"))
                    hashed.update(data)
                    file.write(data)
        return hashed.hexdigest()


def find(addresses: Sequence[str], suffixes: Sequence[str], **how: Any) -> RemoteTexts:
    """The texts of an address, a folder, a glob or a list of these."""
    root, names = listing.root_of(addresses)
    lost = listing.dangling(root, names, suffixes)
    store = listing.opened(root, "texts", names, **how)
    rows = listing.chosen(store.listed.keys.to_pylist(), names, suffixes)
    if not rows and lost:
        raise lost[0]
    if not rows:
        raise NoDataError(f"no object matches {', '.join(addresses)}; expected {', '.join(suffixes)}")
    return RemoteTexts(replace(store, listed=store.listed.take(np.array(rows, np.int64))), suffixes, lost)
