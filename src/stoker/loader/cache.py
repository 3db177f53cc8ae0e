"""A verified tier on local disk between a remote store and the loader, shared by all processes of a machine.

    DIR/lock                        held while a listing is made or a reservation changes
    DIR/<source>/source.json        the address, and how much of the budget it has reserved
    DIR/<source>/manifest.parquet   its listing
    DIR/<source>/claims             a byte of it is locked while an object is downloaded
    DIR/<source>/segments/          the objects, each with a footer: size, checksum, and a digest of its key and tag

Objects are appended and never changed, and entered in an index when they are whole: whatever ends a process leaves
nothing half-written where it counts; what a lost power supply leaves is found by the checksum. What the budget cannot
hold is a fixed subset of the objects, the same in every epoch and every process: nothing is evicted to make room for
something equally likely to be needed.
"""

import fcntl
import hashlib
import json
import logging
import os
import shutil
import struct
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.errors import UsageError
from stoker.loader.claims import Claims
from stoker.loader.scratch import Scratch
from stoker.loader.segments import Files, Index, Where, Writer, drop
from stoker.loader.source.blocks import Ints
from stoker.loader.source.manifest import short_digest
from stoker.loader.source.pieces import Listed

_FOOTER = struct.Struct("<8sQI16s")
_MAGIC = b"stokerC2"
_OVERHEAD_BYTES = 4096
"""What an object takes on disk beyond its bytes, and more: the rest is for what evicting leaves between objects."""

_MOST_BYTES = 1 << 30
"""What is larger is not kept: nothing that is read ahead is."""

_FREE_SHARE = 0.8
_SEEN, _VERIFIED = 1, 2
_NAMES = 1 << 12
_NOWHERE = Where(0, 0, 0)

_log = logging.getLogger("stoker.cache")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Alone among all processes."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


class Shelf:
    """The place of one source in a cache directory."""

    def __init__(self, directory: str | os.PathLike[str], url: str, form: str = "") -> None:
        """`form` says what is made of the objects before they are kept; nothing, if it is empty."""
        self.root = Path(directory)
        self.folder = self.root / short_digest(*filter(None, (url, form)))[:16]
        self.segments = self.folder / "segments"
        self.form = form
        self.url = url
        try:
            self.segments.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"cache is {self.root}, which cannot be used: {error.strerror}") from error
        self._sweep()

    def alone(self) -> Any:
        """Nobody else lists, or reserves, meanwhile."""
        return locked(self.root / "lock")

    @property
    def manifest_path(self) -> Path:
        """Where the listing is kept."""
        return self.folder / "manifest.parquet"

    def try_to(self, write: Callable[[], None]) -> None:
        """Write something that can be done without."""
        try:
            write()
        except OSError as error:
            _log.warning("cannot write to the cache in %s: %s", self.root, error.strerror)

    def note(self) -> dict[str, Any]:
        """What is known of this source: its reservation and what was staged."""
        return _read_json(self.folder / "source.json")

    def reserve(self, wanted_bytes: int, budget_bytes: int, **more: Any) -> int:
        """Take a part of the directory's budget, as much as other sources leave; call it `alone`."""
        taken = self._taken_bytes()
        granted = max(0, min(wanted_bytes, budget_bytes - taken))
        if granted < wanted_bytes and taken:
            _log.warning(
                "the cache in %s holds %d bytes of other sources, so %s gets %d of the %d it could use",
                *(self.root, taken, self.url, granted, wanted_bytes),
            )
        note = self.note() | {"url": self.url, "reserved_bytes": granted} | more
        self.try_to(lambda: _write_json(self.folder / "source.json", note))
        return granted

    def _taken_bytes(self) -> int:
        """What other sources have reserved."""
        others = [_read_json(path) for path in self.root.glob("*/source.json") if path.parent != self.folder]
        return sum(int(other.get("reserved_bytes", 0)) for other in others)

    def budget_bytes(self) -> int:
        """The budget of the directory, unless it is told: what is reserved, and a part of what is free."""
        before = int(self.note().get("reserved_bytes", 0))
        return self._taken_bytes() + max(before, int(shutil.disk_usage(self.root).free * _FREE_SHARE))

    def _sweep(self) -> None:
        """Remove what was kept as Stoker did it before, a file for each object: nobody reads it any more."""
        before = [folder for name in ("objects", "parts") if (folder := self.folder / name).exists()]
        for folder in before:
            shutil.rmtree(folder, ignore_errors=True)
        if before:
            _log.warning("the cache in %s was one of an older Stoker; its objects are downloaded again", self.root)


class Cache:
    """Objects of one source on disk. Used by many threads at once."""

    def __init__(self, shelf: Shelf, listed: Listed, keep: NDArray[np.bool_]) -> None:
        self._shelf = shelf
        self._as_listed = not shelf.form
        """False: what is kept was made of the objects, so it has sizes of its own."""
        self._listed = listed
        self._segments = str(shelf.segments)
        self._index = Index(self._segments)
        self.keep = keep
        self._here = np.zeros(len(listed), np.int8)
        """What this process knows of each object: nothing, that one of the right size is there, or that it is right."""
        self._where = np.zeros(len(listed), [("size", np.uint32), ("segment", np.uint64), ("offset", np.uint64)])
        self._names: dict[int, str] = {}
        """Of objects that were looked for lately, and will be claimed and written: a digest costs."""
        self._lock = threading.Lock()
        self.off: str | None = None
        self.rejected = 0
        self.written_bytes = 0

    def name(self, row: int) -> str:
        """What the object is called here: a digest, whatever the key."""
        found = self._names.get(row)
        if found is None:
            if len(self._names) >= _NAMES:
                self._names.clear()
            self._names[row] = found = short_digest(self._listed.key(row))
        return found

    def has(self, row: int) -> bool:
        """True if the object is on disk, as far as can be seen without reading it."""
        return not len(self.lacking(np.array([row])))

    def came(self, row: int, index_bytes: int) -> bool:
        """True if an object that was lacking is there now; `index_bytes` is how long the index is by now."""
        if index_bytes > self._index.read_bytes:
            self._index.refresh()
        if not self._here[row] and self._index.grew:
            self._look(row)
        return bool(self._here[row])

    def lacking(self, rows: Ints) -> Ints:
        """Those of a number of rows that are not on disk."""
        unknown: Ints = rows[self._here[rows] == 0]
        if len(unknown):
            self._index.refresh()
        for row in unknown.tolist():
            self._look(row)
        found: Ints = unknown[self._here[unknown] == 0]
        return found

    def _look(self, row: int) -> None:
        where = self._index.find(_short(self.name(row)))
        size = where.size - _FOOTER.size
        if 0 < size <= _MOST_BYTES and (not self._as_listed or size == self._listed.sizes[row]):
            self._where[row] = where
            self._here[row] = _SEEN

    def files(self) -> Files:
        """For what one stream reads."""
        return Files(self._segments)

    def read(self, row: int, scratch: Scratch, files: Files) -> memoryview | None:
        """The object's bytes, in scratch memory; None if it is not there, or not what it should be."""
        where = Where(*self._where[row].item())
        view = scratch.room(where.size)
        try:
            count = files.read(where, view)
        except FileNotFoundError:  # never there, or evicted
            self._forget(row, where)
            return None
        except OSError:
            count = -1
        if not self._is_whole(row, view, count):
            if self._forget(row, where):
                with self._lock:
                    self.rejected += 1
            return None
        return view[: -_FOOTER.size]

    def _is_whole(self, row: int, view: memoryview, count: int) -> bool:
        """The size each time; key, tag and checksum on the first read by this process."""
        if count != len(view) or count <= _FOOTER.size:
            return False
        if self._here[row] != _VERIFIED:
            if view[-_FOOTER.size :] != self._footer(row, view[: -_FOOTER.size]):
                return False
            self._here[row] = _VERIFIED
        return True

    def _footer(self, row: int, data: Any) -> bytes:
        whose = f"{self._listed.tag(row)}\0{self._listed.key(row)}".encode("utf-8", "surrogatepass")
        return _FOOTER.pack(_MAGIC, len(data), zlib.crc32(data), hashlib.blake2b(whose, digest_size=16).digest())

    def _forget(self, row: int, where: Where) -> bool:
        """The object is not there, or not right; False if that is known, or it is somewhere else by now."""
        with self._lock:
            if self._where[row].item() != where:
                return False
            self._index.forget(_short(self.name(row)), where)
            self._where[row], self._here[row] = _NOWHERE, 0
            return True

    def writer(self) -> Writer:
        """For what one stream brings."""
        return Writer(self._segments, self._index)

    def write(self, writer: Writer, objects: Sequence[tuple[int, Any]]) -> None:
        """Keep rows that were verified. What fails here costs a later download, nothing else."""
        kept = [(row, data) for row, data in objects if len(data) <= _MOST_BYTES]
        if self.off is not None or not kept:
            return
        try:
            found = writer.append([(_short(self.name(row)), (data, self._footer(row, data))) for row, data in kept])
        except OSError as error:
            with self._lock:
                said, self.off = self.off, f"{error.strerror} ({self._shelf.root})"
            if said is None:
                _log.warning("nothing more is written to the cache: %s. Loading goes on without it.", self.off)
            return
        with self._lock:
            for (row, data), where in zip(kept, found, strict=True):
                self._where[row] = where
                self._here[row] = _VERIFIED
                self.written_bytes += len(data)

    def evict(self, budget_bytes: int) -> int:
        """Remove what the budget does not keep, or the listing does not hold; returns how many objects went."""
        names = [_short(self.name(row)) for row in np.flatnonzero(self.keep).tolist()]
        needed = int((self._listed.sizes[self.keep] + _FOOTER.size).sum())
        with locked(self._shelf.folder / "lock"):
            return drop(self._segments, np.array(names, np.uint64), budget_bytes - needed)

    def claims(self) -> Claims:
        """Locks for one stream's downloads."""
        return Claims(self._shelf.folder / "claims")


def _short(name: str) -> int:
    """What the index knows of a name."""
    return int(name[:16], 16)


def kept(listed: Listed, budget_bytes: int, first: Ints | None = None) -> NDArray[np.bool_]:
    """The fixed subset of objects that a budget holds: those staged first, then in the order of their keys' digests."""
    sizes = listed.sizes + _OVERHEAD_BYTES
    if int(sizes.sum()) <= budget_bytes:
        return np.ones(len(listed), bool)
    ranks = np.array([zlib.crc32(key.as_py().encode()) for key in listed.keys], np.int64)
    if first is not None:
        ranks[first] = -1
    order = np.argsort(ranks, kind="stable")
    keep = np.zeros(len(listed), bool)
    keep[order[np.cumsum(sizes[order]) <= budget_bytes]] = True
    return keep


def disk_bytes(sizes: Ints) -> int:
    """What objects of these sizes take on disk."""
    return int((sizes + _OVERHEAD_BYTES).sum())


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write_json(path: Path, value: dict[str, Any]) -> None:
    part = path.with_name(f"{path.name}.part")
    part.write_text(json.dumps(value, indent=1))
    part.replace(path)
