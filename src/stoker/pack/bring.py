"""Objects of a store as files of this machine, for as long as work needs them: brought ahead, in the order of need.

One thread writes them, one after the other, while many requests for what comes next are under way.
"""

import hashlib
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import IO

from stoker.errors import ChecksumError, ClosedError, DataError, UsageError
from stoker.loader.scratch import Scratch
from stoker.loader.source.counters import Counters
from stoker.loader.source.limit import Limit
from stoker.loader.source.manifest import Manifest
from stoker.loader.source.pieces import Pieces
from stoker.loader.source.pull import Pull
from stoker.loader.source.remote import Remote

DISK_BYTES = 1 << 28
"""Files that nobody waits for yet take so much of the disk, at most; and one more, however large it is."""
_PIECE_BYTES = 1 << 22
_AHEAD = 64
"""Pieces that are asked for at once; as many again are under way when their turn comes."""
_ATTEMPTS = 3
_KINDS = (".npy", ".parquet", ".jsonl", ".ndjson", ".txt")
_PACKED = ("", ".gz", ".zst")


class Bring:
    """Brings objects into a folder. `needs` are those of each piece of work, in the order in which it is done."""

    def __init__(
        self, remote: Remote, listed: Manifest, needs: Sequence[Sequence[int]], folder: Path, memory_bytes: int
    ) -> None:
        self._listed, self._folder = listed, folder
        self._uses = Counter(row for some in needs for row in some)
        """Pieces of work that are still to use an object."""
        self._order = list(self._uses)
        self._here: set[int] = set()
        self._wanted: set[int] = set()
        """Those that are not here and that somebody waits for."""
        self._held_bytes = 0
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        sizes = listed.sizes.tolist()
        cuts = [[*range(0, sizes[row], _PIECE_BYTES), sizes[row]] for row in self._order]
        ranges = [(row, a, b) for row, cut in zip(self._order, cuts, strict=True) for a, b in pairwise(cut)]
        self._asked, self._count = 0, len(ranges)
        self._pull = Pull(remote, Pieces.of(listed, ranges), None, limit=Limit(None, hedge=True), counters=Counters())
        self._pull.budget_bytes = max(_PIECE_BYTES, memory_bytes)
        folder.mkdir(parents=True, exist_ok=True)
        self._thread = threading.Thread(target=self._run, name="stoker-bring", daemon=True)
        self._thread.start()

    @contextmanager
    def local(self, row: int) -> Iterator[str]:
        """An object as a file, once for each piece of work that needs it; what is wrong with it names the object."""
        path, address = self._path(row), self._listed.address(row)
        self._wait_for(row)
        try:
            yield str(path)
        except DataError as error:
            if error.path != str(path):
                raise
            raise type(error)(address, error.reason, error.row) from error
        except UsageError as error:
            raise UsageError(str(error).replace(str(path), address)) from error
        finally:
            self._used(row)

    def _path(self, row: int) -> Path:
        """Of the key only the end is used, if it says how to read the object: the rest may be anything."""
        key = self._listed.key(row)
        ends = (kind + packed for kind in _KINDS for packed in _PACKED)
        return self._folder / f"{row:08}{next((end for end in ends if key.endswith(end)), '')}"

    def _wait_for(self, row: int) -> None:
        with self._changed:
            if row not in self._here:
                self._wanted.add(row)
                self._changed.notify_all()
                self._changed.wait_for(lambda: row in self._here or self._error is not None)
            if row not in self._here:
                assert self._error is not None
                raise self._error

    def _used(self, row: int) -> None:
        with self._changed:
            self._uses[row] -= 1
            if not self._uses[row]:
                self._path(row).unlink(missing_ok=True)
                self._here.discard(row)
                self._held_bytes -= self._listed.object_bytes(row)
                self._changed.notify_all()

    def close(self) -> None:
        """End all requests; whoever waits is told. Safe to call twice."""
        self._fail(ClosedError("packing was stopped while it waited for an object"))
        self._pull.close()
        self._thread.join()

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    # ---- the thread that writes

    def _run(self) -> None:
        at = 0
        try:
            with closing(self._pull):
                for row in self._order:
                    self._wait_for_room(self._listed.object_bytes(row))
                    count = -(-self._listed.object_bytes(row) // _PIECE_BYTES)
                    self._write(row, range(at, at + count))
                    at += count
                    with self._changed:
                        self._here.add(row)
                        self._wanted.discard(row)
                        self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001  belongs to whoever waits
            self._fail(error)

    def _wait_for_room(self, size: int) -> None:
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._error is not None or self._wanted or not self._held_bytes
                    or self._held_bytes + size <= DISK_BYTES
                )
            )  # fmt: skip
            if self._error is not None:
                raise self._error
            self._held_bytes += size

    def _write(self, row: int, pieces: range) -> None:
        """Write an object, again if what came is not what was listed."""
        for _ in range(_ATTEMPTS):
            with self._path(row).open("wb") as file:
                found = self._download(pieces, file)
            if not self._listed.has_md5(row) or found == self._listed.tag(row):
                return
        raise ChecksumError(self._listed.address(row), f"its MD5 is {found}; {self._listed.tag(row)} was listed")

    def _download(self, pieces: range, file: IO[bytes]) -> str:
        """The MD5 of what came."""
        hashed, scratch = hashlib.md5(usedforsecurity=False), Scratch()
        for piece in pieces:
            while self._asked < self._count and self._asked <= piece + _AHEAD:
                self._pull.soon(range(self._asked, min(self._count, self._asked + _AHEAD)))
                self._asked += _AHEAD
            data = self._pull.take(piece, scratch)
            hashed.update(data)
            file.write(data)
        return hashed.hexdigest()
