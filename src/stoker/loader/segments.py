"""Objects on disk, many in a file: appended, never changed, found by an index that all processes of a machine share.

    index       an entry for each object: a part of its name, its size, and where it is
    <number>    a segment: objects one behind the other, each with what proves it right behind it

A file for each object would cost more than a small object's download: to make one takes the file system long. Here an
object is appended to its writer's segment, then its entry to the index, so whatever ends a process leaves bytes that no
entry names, and nothing worse. Entries are only hints: what they lead to is checked by who reads it. Of several entries
of one name the last one counts.
"""

import os
import struct
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stoker.loader.claims import position

ENTRY = np.dtype(
    [("magic", "<u4"), ("size", "<u4"), ("name", "<u8"), ("segment", "<u8"), ("offset", "<u8"), ("check", "<u8")]
)
"""As it is on disk. `size` is that of all bytes of an object, with what proves it."""
_ENTRY = struct.Struct("<IIQQQQ")

Entries = np.ndarray[Any, Any]
Names = NDArray[np.uint64]

_LIVE, _DEAD = 0x31634B53, 0x30634B53
_MARKS = [magic.to_bytes(4, "little") for magic in (_LIVE, _DEAD)]
_SEGMENT_BYTES = 1 << 28
"""From so many bytes on a writer begins another one, so that evicting copies no more than that at once."""
_LOOK_BYTES = 1 << 20
"""A writer sees after so many bytes whether its segment is still there."""
_OPEN = 64
"""Segments that a stream has open at once, at most."""
_PARTS = 512
"""The system takes no more than 1024 at once."""
_FRESH = 1 << 14
"""So many entries are looked up one by one before they are sorted in among the others."""


class Where(NamedTuple):
    """The bytes of one object. A size of 0: nowhere."""

    size: int
    segment: int
    offset: int


_NOWHERE = Where(0, 0, 0)


class Index:
    """Where objects are, as far as this process has read. Used by many threads at once."""

    def __init__(self, folder: str) -> None:
        self._path = f"{folder}/index"
        self._lock = threading.Lock()
        self._names: Names = np.empty(0, np.uint64)
        """Sorted, and below in the same order."""
        self._entries: Entries = np.empty(0, ENTRY)
        self._fresh: dict[int, Where] = {}
        """What was read lately, by name."""
        self.read_bytes = 0
        self._was_read = False
        self.own: set[int] = set()
        """Segments that this process writes: it knows what is in them."""
        self.grew = False
        """True if others have appended to it since it was read first."""

    def refresh(self) -> None:
        """Read what processes have appended since."""
        with self._lock:
            entries, _, used = parse(_bytes_from(self._path, self.read_bytes))
            self.read_bytes += used
            if self.own:
                entries = entries[~np.isin(entries["segment"], np.array(list(self.own), np.uint64))]
            self._add(entries)
            self.grew |= self._was_read and len(entries) > 0
            self._was_read = True

    def _add(self, entries: Entries) -> None:
        if len(entries) + len(self._fresh) <= _FRESH:
            self._fresh.update((one[2], _where(one)) for one in entries.tolist())
            return
        fresh = np.frombuffer(_made(self._fresh, self._fresh.values()), ENTRY)
        entries = np.concatenate([self._entries, fresh, entries])
        self._entries = entries = entries[_last(entries["name"])]
        self._names, self._fresh = np.ascontiguousarray(entries["name"]), {}

    def find(self, name: int) -> Where:
        """Where an object should be."""
        with self._lock:
            return self._find(name)

    def _find(self, name: int) -> Where:
        found = self._fresh.get(name)
        if found is None and len(self._names):
            at = int(np.searchsorted(self._names, np.uint64(name)))
            if at < len(self._names) and int(self._names[at]) == name:
                found = _where(self._entries[at].item())
        return found or _NOWHERE

    def forget(self, name: int, where: Where) -> None:
        """What was said of an object is wrong."""
        with self._lock:
            if self._find(name) == where:
                self._fresh[name] = _NOWHERE

    def appended(self, start: int, nbytes: int) -> None:
        """Skip what this process wrote to the index itself, if it has read all before."""
        with self._lock:
            if self.read_bytes == start:
                self.read_bytes += nbytes


class _File:
    """An open segment, until the last one lets go of it: nobody reads from a number that means another file by now."""

    __slots__ = ("number",)

    def __init__(self, path: str) -> None:
        self.number = -1
        self.number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        if self.number >= 0:
            os.close(self.number)


class Files:
    """Segments that one stream reads from. Used by many threads at once."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._open: dict[int, _File] = {}
        self._closed = False

    def read(self, where: Where, view: memoryview) -> int:
        """Read an object; returns how many bytes came. An error if its segment is gone."""
        file = self._open.get(where.segment)
        if file is None:
            file = _File(path_of(self._folder, where.segment))
            if len(self._open) >= _OPEN:
                self._open = {}
            if not self._closed:
                self._open[where.segment] = file
        return os.preadv(file.number, [view], where.offset)

    def close(self) -> None:
        """Let go of them."""
        self._closed = True
        self._open = {}


class Writer:
    """Appends one stream's objects; used by several threads."""

    def __init__(self, folder: str, index: Index) -> None:
        self._folder, self._known = folder, index
        self._lock = threading.Lock()
        self._index = os.open(f"{folder}/index", os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        self._file, self._segment, self._end, self._look_at = -1, 0, 0, 0

    def index_bytes(self) -> int:
        """How long the index is by now."""
        return position(self._index, os.SEEK_END) if self._index >= 0 else 0

    def append(self, objects: Sequence[tuple[int, Sequence[Any]]]) -> list[Where]:
        """Names and bytes (in parts) of objects; returns where they are. All of them, or an error and none."""
        with self._lock:
            if self._is_over():
                self._next()
            found, end = [], self._end
            for _, parts in objects:
                found.append(Where(sum(map(len, parts)), self._segment, end))
                end += found[-1].size
            try:
                _write_all(self._file, [part for _, parts in objects for part in parts])
                self._note([name for name, _ in objects], found)
            except BaseException:
                with suppress(OSError):
                    os.ftruncate(self._file, self._end)
                self._leave()  # where the next one would go is not known
                raise
            self._end = end
            return found

    def _is_over(self) -> bool:
        """True if it is time for another segment: the last one is full, or was evicted by another process."""
        if self._file < 0 or self._end >= _SEGMENT_BYTES:
            return True
        if self._end < self._look_at:
            return False
        self._look_at = self._end + _LOOK_BYTES
        return os.fstat(self._file).st_nlink == 0

    def _note(self, names: Sequence[int], found: Sequence[Where]) -> None:
        noted = _made(names, found)
        _write_all(self._index, [noted])
        self._known.appended(position(self._index) - len(noted), len(noted))

    def _next(self) -> None:
        self._leave()
        segment = int.from_bytes(os.urandom(8), "little")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._file, self._segment = os.open(path_of(self._folder, segment), flags, 0o644), segment
        self._end, self._look_at = 0, _LOOK_BYTES
        self._known.own.add(segment)

    def _leave(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
            if not self._end:
                Path(path_of(self._folder, self._segment)).unlink(missing_ok=True)

    def close(self) -> None:
        """Leave nothing open, and no empty segment."""
        with self._lock:
            self._leave()
            if self._index >= 0:
                os.close(self._index)
                self._index = -1


def _where(entry: tuple[int, ...]) -> Where:
    _, size, _, segment, offset, _ = entry
    return Where(size, segment, offset)


def _made(names: Iterable[int], places: Iterable[Where]) -> bytes:
    """Entries, as bytes: numpy takes ten times as long for one."""
    return b"".join(
        _ENTRY.pack(_LIVE, size, name, segment, offset, size ^ name ^ segment ^ offset)
        for name, (size, segment, offset) in zip(names, places, strict=True)
    )


def _is_entry(entries: Entries) -> NDArray[np.bool_]:
    """False for the head of one entry and the tail of another."""
    check = entries["size"] ^ entries["name"] ^ entries["segment"] ^ entries["offset"]
    found: NDArray[np.bool_] = np.isin(entries["magic"], (_LIVE, _DEAD)) & (entries["check"] == check)
    return found


def path_of(folder: str, segment: int) -> str:
    """The file of a segment."""
    return f"{folder}/{segment:016x}"


def parse(data: bytes) -> tuple[Entries, NDArray[np.int64], int]:
    """Entries of an index, where they begin, and how many bytes were used up."""
    found, starts, at, end = [np.empty(0, ENTRY)], [np.empty(0, np.int64)], 0, 0
    while at + ENTRY.itemsize <= len(data):
        entries = np.frombuffer(data, ENTRY, (len(data) - at) // ENTRY.itemsize, at)
        right = _is_entry(entries)
        count = len(right) if right.all() else int(np.argmin(right))
        found.append(entries[:count])
        starts.append(at + ENTRY.itemsize * np.arange(count))
        at += ENTRY.itemsize * count
        end = at if count else end
        if count < len(right):  # a full disk has cut this one short
            at = min([there for mark in _MARKS if (there := data.find(mark, at + 1)) >= 0], default=len(data))
    entries, places = np.concatenate(found), np.concatenate(starts)
    live = entries["magic"] == _LIVE
    return entries[live], places[live], end


def drop(folder: str, keep: Names, spare_bytes: int) -> int:
    """Let go of all objects but these, until no more than so many bytes are wasted; returns how many went."""
    index = Path(folder) / "index"
    if not index.exists():
        return 0
    entries, starts, _ = parse(index.read_bytes())
    wasted = _sizes(folder)
    stays = np.zeros(len(entries), bool)
    stays[_last(entries["name"])] = True
    stays &= np.isin(entries["name"], keep) & np.isin(entries["segment"], np.array(list(wasted), np.uint64))
    _bury(index, starts[~stays])
    gone, entries, starts = int(np.count_nonzero(~stays)), entries[stays], starts[stays]
    for segment, size in zip(entries["segment"].tolist(), entries["size"].tolist(), strict=True):
        wasted[segment] -= size
    for segment in sorted(wasted, key=lambda one: -wasted[one]):
        inside = entries["segment"] == segment
        if inside.any() and sum(wasted.values()) <= spare_bytes:
            continue
        with suppress(OSError):  # what has no room is downloaded again
            _move(folder, entries[inside])
        _bury(index, starts[inside])
        Path(path_of(folder, segment)).unlink(missing_ok=True)
        wasted[segment] = 0
    return gone


def _bytes_from(path: str, start: int) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123  often
            file.seek(start)
            return file.read()
    except OSError:
        return b""


def _sizes(folder: str) -> dict[int, int]:
    """How large each segment is."""
    found = {}
    for file in os.scandir(folder):
        if file.name != "index":
            with suppress(ValueError):
                found[int(file.name, 16)] = file.stat().st_size
    return found


def _move(folder: str, entries: Entries) -> None:
    """Append objects of one segment to another one."""
    if not len(entries):
        return
    writer = Writer(folder, Index(folder))
    try:
        with open(path_of(folder, int(entries["segment"][0])), "rb", buffering=0) as file:  # noqa: PTH123
            for _, size, name, _, offset, _ in entries.tolist():
                body = os.pread(file.fileno(), size, offset)
                if len(body) == size:
                    writer.append([(name, (body,))])
    finally:
        writer.close()


def _bury(index: Path, starts: NDArray[np.int64]) -> None:
    with index.open("r+b") as file:
        for start in starts.tolist():
            os.pwrite(file.fileno(), _DEAD.to_bytes(4, "little"), start)


def _last(names: Names) -> NDArray[np.int64]:
    """Where the last one of each name is, in the order of names."""
    order = np.argsort(names, kind="stable")
    ordered = names[order]
    return order[np.append(ordered[1:] != ordered[:-1], True)] if len(order) else order


def _write_all(file: int, parts: Sequence[Any]) -> None:
    done = os.writev(file, parts[:_PARTS])
    if done < sum(map(len, parts)):
        rest = memoryview(b"".join(parts))[done:]
        while rest:
            rest = rest[os.write(file, rest) :]
