"""A verified tier on local disk between a remote store and the loader, shared by all processes of a machine.

    DIR/lock                                  held while a listing is made or a reservation changes
    DIR/<source>/source.json                  the address, and how much of the budget it has reserved
    DIR/<source>/manifest.parquet             its listing
    DIR/<source>/claims                       a byte of it is locked while an object is downloaded
    DIR/<source>/parts/                       files being written
    DIR/<source>/objects/ab/<digest of key>   the object, then a footer: size, checksum, and a digest of its tag

A file is renamed into place when it is whole, so whatever ends a process leaves nothing half-written where it counts;
what a lost power supply leaves is found by the checksum. What the budget cannot hold is a fixed subset of the objects,
the same in every epoch and every process: nothing is evicted to make room for something equally likely to be needed.
"""

import fcntl
import hashlib
import json
import logging
import os
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from stoker.errors import UsageError
from stoker.loader.scratch import Scratch
from stoker.loader.source.blocks import Ints
from stoker.loader.source.manifest import Manifest, short_digest

_FOOTER = struct.Struct("<8sQI16s")
_MAGIC = b"stokerC1"
_OVERHEAD_BYTES = 4096
"""What a file takes on disk beyond its bytes, at most, on average: footer, rounding to blocks, directory entry."""

_MOST_BYTES = 1 << 30
"""A file that claims more is none of ours."""

_SEEN, _VERIFIED = 1, 2

_log = logging.getLogger("stoker.cache")


class Claims:
    """Which objects this stream downloads, known to all processes: locks on single bytes of one file.

    The system takes them back when a process ends, however it ends.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._lock = threading.Lock()
        self._held: set[str] = set()

    def take(self, name: str) -> bool:
        """True if nobody else downloads this object, in this stream or another."""
        with self._lock:
            if name in self._held or not self._set(name, fcntl.F_WRLCK):
                return False
            self._held.add(name)
            return True

    def release(self, name: str) -> None:
        """Let others have it."""
        with self._lock:
            self._held.discard(name)
            self._set(name, fcntl.F_UNLCK)

    def _set(self, name: str, kind: int) -> bool:
        at = int(name[:15], 16)
        if self._file < 0:
            return True
        try:
            if hasattr(fcntl, "F_OFD_SETLK"):  # belongs to this object, not to the process
                fcntl.fcntl(self._file, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", kind, os.SEEK_SET, at, 1, 0))
            else:
                how = fcntl.LOCK_UN if kind == fcntl.F_UNLCK else fcntl.LOCK_EX | fcntl.LOCK_NB
                fcntl.lockf(self._file, how, 1, at)
        except (BlockingIOError, PermissionError):
            return False
        except OSError:  # a file system without locks: better an object twice than none
            return True
        return True

    def close(self) -> None:
        """Give all of them back."""
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1


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
        self.form = form
        self.url = url
        try:
            for folder in (self.folder / "objects", self.folder / "parts"):
                folder.mkdir(parents=True, exist_ok=True)
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
        others = [_read_json(path) for path in self.root.glob("*/source.json") if path.parent != self.folder]
        taken = sum(int(other.get("reserved_bytes", 0)) for other in others)
        granted = max(0, min(wanted_bytes, budget_bytes - taken))
        if granted < wanted_bytes and taken:
            _log.warning(
                "the cache in %s holds %d bytes of other sources, so %s gets %d of the %d it could use",
                *(self.root, taken, self.url, granted, wanted_bytes),
            )
        note = self.note() | {"url": self.url, "reserved_bytes": granted} | more
        self.try_to(lambda: _write_json(self.folder / "source.json", note))
        return granted

    def _sweep(self) -> None:
        """Remove what processes that were killed left half-written."""
        for path in (self.folder / "parts").iterdir():
            try:
                with path.open("rb") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink(missing_ok=True)
            except OSError:
                continue  # its writer is alive, or it is gone already


class Cache:
    """Objects of one source on disk. Used by many threads at once."""

    def __init__(self, shelf: Shelf, manifest: Manifest, keep: NDArray[np.bool_]) -> None:
        self._shelf = shelf
        self._as_listed = not shelf.form
        """False: what is kept was made of the objects, so it has sizes of its own."""
        self._manifest = manifest
        self._objects = str(shelf.folder / "objects")
        self._parts = str(shelf.folder / "parts")
        self._writer = f"{os.getpid()}-{uuid4().hex}"
        self._numbers = count()
        self.keep = keep
        self._here = np.zeros(len(manifest), np.int8)
        """What this process knows of each object: nothing, that its file has the right size, or that it is right."""
        self._paths: dict[int, str] = {}
        """Of objects that were looked for and not read yet: a name is a digest, which costs."""
        self._lock = threading.Lock()
        self.off: str | None = None
        self.rejected = 0
        self.written_bytes = 0

    def name(self, row: int) -> str:
        """A file name that cannot leave the cache, whatever the key."""
        return short_digest(self._manifest.key(row))

    def path(self, row: int) -> str:
        """The object's file."""
        name = self.name(row)
        return f"{self._objects}/{name[:2]}/{name}"

    def has(self, row: int) -> bool:
        """True if the object is on disk, as far as can be seen without reading it."""
        if not self._here[row]:
            path = self.path(row)
            try:
                size = os.stat(path).st_size  # noqa: PTH116  once for each object of an epoch
            except OSError:
                return False
            if size <= _FOOTER.size or (self._as_listed and size != self._manifest.sizes[row] + _FOOTER.size):
                return False
            self._here[row] = _SEEN
            self._paths[row] = path
        return True

    def lacking(self, rows: Ints) -> Ints:
        """Those of a number of rows that are not on disk."""
        unknown = rows[self._here[rows] == 0]
        return np.array([row for row in unknown.tolist() if not self.has(row)], np.int64)

    def read(self, row: int, scratch: Scratch) -> memoryview | None:
        """The object's bytes, in scratch memory; None if it is not there, or not what it should be."""
        try:
            file = os.open(self._paths.pop(row, "") or self.path(row), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._here[row] = 0
            return None
        view, count = memoryview(b""), -1
        try:
            size = int(self._manifest.sizes[row]) if self._as_listed else os.fstat(file).st_size - _FOOTER.size
            if 0 <= size <= _MOST_BYTES:
                view = scratch.room(size + _FOOTER.size + 1)
                count = os.readv(file, [view])
        except OSError:
            size = 0
        finally:
            os.close(file)
        if not self._is_whole(row, view, count, size):
            self._reject(row)
            return None
        return view[:size]

    def _is_whole(self, row: int, view: memoryview, count: int, size: int) -> bool:
        """The size each time; tag and checksum on the first read by this process."""
        if count != size + _FOOTER.size:
            return False
        if self._here[row] != _VERIFIED:
            if view[size:count] != self._footer(row, view[:size]):
                return False
            self._here[row] = _VERIFIED
        return True

    def _footer(self, row: int, data: Any) -> bytes:
        tag = hashlib.blake2b(self._manifest.tag(row).encode(), digest_size=16).digest()
        return _FOOTER.pack(_MAGIC, len(data), zlib.crc32(data), tag)

    def _reject(self, row: int) -> None:
        with self._lock:
            self._here[row] = 0
            self.rejected += 1
        Path(self.path(row)).unlink(missing_ok=True)

    def write(self, row: int, data: Any) -> None:
        """Keep an object that was verified. What fails here costs a later download, nothing else."""
        if self.off is not None:
            return
        try:
            self._write(row, data)
        except OSError as error:
            with self._lock:
                said, self.off = self.off, f"{error.strerror} ({self._shelf.root})"
            if said is None:
                _log.warning("nothing more is written to the cache: %s. Loading goes on without it.", self.off)
            return
        with self._lock:
            self._here[row] = _VERIFIED
            self.written_bytes += len(data)

    def _write(self, row: int, data: Any) -> None:
        target, part = self.path(row), f"{self._parts}/{self._writer}-{next(self._numbers)}"
        file = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _write_all(file, [memoryview(data), memoryview(self._footer(row, data))])
            try:
                os.rename(part, target)  # noqa: PTH104  for each object
            except FileNotFoundError:
                Path(target).parent.mkdir(exist_ok=True)
                Path(part).rename(target)
        except BaseException:
            Path(part).unlink(missing_ok=True)
            raise
        finally:
            os.close(file)

    def evict(self) -> int:
        """Remove what the budget does not keep, or the listing does not hold; returns how many files went."""
        keep = {self.name(row) for row in np.flatnonzero(self.keep).tolist()}
        gone = 0
        for folder in os.scandir(self._objects):
            for file in os.scandir(folder.path):
                if file.name not in keep:
                    Path(file.path).unlink(missing_ok=True)
                    gone += 1
        return gone

    def claims(self) -> Claims:
        """Locks for one stream's downloads."""
        return Claims(self._shelf.folder / "claims")


def kept(manifest: Manifest, budget_bytes: int, first: Ints | None = None) -> NDArray[np.bool_]:
    """The fixed subset of objects that a budget holds: those staged first, then in the order of their keys' digests."""
    sizes = manifest.sizes + _OVERHEAD_BYTES
    if int(sizes.sum()) <= budget_bytes:
        return np.ones(len(manifest), bool)
    ranks = np.array([zlib.crc32(key.as_py().encode()) for key in manifest.keys], np.int64)
    if first is not None:
        ranks[first] = -1
    order = np.argsort(ranks, kind="stable")
    keep = np.zeros(len(manifest), bool)
    keep[order[np.cumsum(sizes[order]) <= budget_bytes]] = True
    return keep


def disk_bytes(manifest: Manifest) -> int:
    """What all objects take on disk."""
    return int((manifest.sizes + _OVERHEAD_BYTES).sum())


def _write_all(file: int, parts: list[memoryview]) -> None:
    for part in parts:
        at = 0
        while at < len(part):
            at += os.write(file, part[at:])


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
