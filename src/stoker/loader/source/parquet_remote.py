"""Parquet in a store: of each object the footer when it is opened, then the chosen columns of a row group at a time."""

import io
import threading
import zlib
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stoker.errors import CorruptError, EmptyFileError
from stoker.loader.source.blocks import Ints
from stoker.loader.source.parquet import ParquetSource, footer
from stoker.loader.source.pieces import Pieces
from stoker.loader.source.tier import OfTier, Range, Store, Tier

_TAIL_BYTES = 1 << 16
"""Arrow reads as much of a file's end at once; most footers fit."""
_END = 8
_AT_ONCE = 256
"""Footers that are in memory at once."""
_PARSED_BYTES = 1 << 23
"""Footers of so many bytes are kept as Arrow has them, which is eight times as much."""
_GAP_BYTES = 1 << 18
"""Columns that are not wanted are read all the same if they are so small: another request costs more."""
_PIECE_BYTES = 1 << 23
_SLACK_BYTES = 128
"""Arrow reads so far behind a column that an old writer may have measured wrongly."""


class Spans(io.RawIOBase):
    """A file of which only some ranges are there; reading any other is an error."""

    def __init__(self, nbytes: int, parts: Sequence[tuple[int, Any]]) -> None:
        super().__init__()
        self._nbytes, self._at = nbytes, 0
        self._parts = sorted(((start, memoryview(data).cast("B")) for start, data in parts), key=lambda one: one[0])
        self._starts = [start for start, _ in self._parts]

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place in the file."""
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._nbytes}[whence]
        return self._at

    def tell(self) -> int:
        """The place in the file."""
        return self._at

    def size(self) -> int:
        """Of the whole file."""
        return self._nbytes

    def read(self, size: int = -1) -> bytes:
        """The bytes from here on; they may lie in several ranges that follow each other."""
        stop = self._nbytes if size < 0 else min(self._nbytes, self._at + size)
        found = []
        while self._at < stop:
            number = bisect_right(self._starts, self._at) - 1
            start, data = self._parts[number] if number >= 0 else (0, memoryview(b""))
            part = data[self._at - start : stop - start]
            if not part:
                raise OSError(f"bytes {self._at} to {stop - 1} were not fetched")
            found.append(part)
            self._at += len(part)
        return b"".join(found)


class Footers:
    """What says where columns lie: of each object as it was read, compressed, and of those used last as Arrow has it.

    Of thousands of objects with hundreds of row groups each, Arrow's would take more memory than the data that is held.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._packed: dict[str, bytes] = {}
        self._parsed: dict[str, tuple[int, Any]] = {}

    def put(self, path: str, tail: bytes) -> tuple[Any, pa.Schema]:
        """Keep the footer at the end of an object; its metadata and schema."""
        found = footer(path, pa.BufferReader(tail))  # Arrow takes it for a small file
        self._packed[path] = zlib.compress(tail[len(tail) - _footer_bytes(tail) :], 1)
        return found

    def keep(self, paths: Sequence[str]) -> None:
        """Only these are needed."""
        self._packed = {path: self._packed[path] for path in paths}

    def get(self, path: str) -> Any:
        """The metadata of an object."""
        with self._lock:
            if path in self._parsed:
                self._parsed[path] = found = self._parsed.pop(path)  # the latest
                return found[1]
        tail = zlib.decompress(self._packed[path])
        metadata, _ = footer(path, pa.BufferReader(tail))
        with self._lock:
            self._parsed[path] = (len(tail), metadata)
            while len(self._parsed) > 1 and sum(size for size, _ in self._parsed.values()) > _PARSED_BYTES:
                del self._parsed[next(iter(self._parsed))]
        return metadata


class RemoteParquetSource(OfTier, ParquetSource):
    """Use `stoker.open("s3://bucket/events/*.parquet")`."""

    def __init__(
        self,
        store: Store,
        *,
        columns: Sequence[str] | None = None,
        on_error: Literal["raise", "skip"] = "raise",
    ) -> None:
        self.store = store
        wanted = "all" if columns is None else ", ".join(sorted(columns))
        self._tier = Tier(store, f"row groups of Parquet: {wanted}")
        listed = store.listed
        addresses = [listed.address(row) for row in range(len(listed))]
        self._at_object = {address: row for row, address in enumerate(addresses)}
        self._tails: dict[str, Any] = {}
        self._footers = Footers()
        self._places: dict[tuple[int, int], list[tuple[int, int]]] = {}
        """By file and row group: where the chosen columns lie."""
        super().__init__(addresses, columns=columns, on_error=on_error)
        self._tails = {}
        self._footers.keep(self._paths)
        self._lay_out()

    def _look(self, path: str) -> tuple[Any, pa.Schema, int]:
        row = self._at_object[path]
        if path not in self._tails:  # some at a time: they are thousands of times as large as what is kept of them
            rows = range(row, min(row + _AT_ONCE, len(self.store.listed)))
            tails = self._tier.ends(rows, first_bytes=_TAIL_BYTES, needs=_footer_bytes, last=True)
            self._tails = {self.store.listed.address(one): tail for one, tail in zip(rows, tails, strict=True)}
        tail, nbytes = self._tails[path], int(self.store.listed.sizes[row])
        if nbytes == 0:
            raise EmptyFileError(path, "the object is empty; expected Parquet")
        if isinstance(tail, BaseException):
            raise tail
        metadata, schema = self._footers.put(path, tail)
        _check_places(path, metadata, nbytes)
        self._looked_at_bytes = nbytes
        return metadata, schema, nbytes

    def _measure(self, group: Any, file: int, number: int, first: int) -> Any:
        """Where its columns lie is noted too, while the footer is at hand."""
        stored = [chunk for _, chunk in self._chunks(group)]
        self._places[file, number] = _spans(stored, self._looked_at_bytes)
        return super()._measure(group, file, number, first)

    def _lay_out(self) -> None:
        """The pieces of each row group: its chosen columns, those together that lie near each other."""
        ranges: list[Range] = []
        self._pieces: list[range] = []
        self._first_bytes: list[int] = []
        for group in self._groups:
            at, before = self._at_object[self._paths[group.file]], len(ranges)
            for start, stop in self._places[group.file, group.group]:
                cuts = [*range(start, stop, _PIECE_BYTES), stop]
                ranges += [(at, a, b) for a, b in pairwise(cuts)]
            self._pieces.append(range(before, len(ranges)))
        self._places = {}
        self._first_bytes = [start for _, start, _ in ranges]
        self._tier.lay_out(Pieces.of(self.store.listed, ranges))

    def enter(self, first: Ints, sizes: Ints) -> None:
        """Ask for a window's row groups."""
        blocks = self.blocks.of(np.asarray(first)).tolist()
        self._tier.soon([piece for block in blocks for piece in self._pieces[block]])

    def _opened(self, block: int) -> Callable[[], pq.ParquetFile]:
        group = self._groups[block]
        parts = [(self._first_bytes[piece], self._tier.take(piece)) for piece in self._pieces[block]]

        def file() -> pq.ParquetFile:
            spans = pa.PythonFile(Spans(self._sizes[group.file], parts), "r")
            return pq.ParquetFile(
                spans,
                metadata=self._footers.get(self._paths[group.file]),
                pre_buffer=False,
                page_checksum_verification=True,
            )

        return file


def _footer_bytes(tail: bytes) -> int:
    """What a footer takes, as the end of its file says; nothing if that is no Parquet."""
    is_one = len(tail) >= _END and tail[-4:] in (b"PAR1", b"PARE")
    return int.from_bytes(tail[-_END:-4], "little") + _END if is_one else 0


def _check_places(path: str, metadata: Any, nbytes: int) -> None:
    """Refuse a footer whose columns lie outside of the object."""
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for start, stop in (_place(group.column(at)) for at in range(group.num_columns)):
            if not 0 <= start <= stop <= nbytes:
                raise CorruptError(path, f"its footer puts a column at bytes {start} to {stop} of {nbytes}")


def _place(chunk: Any) -> tuple[int, int]:
    """Where a stored column begins and ends."""
    start = chunk.data_page_offset
    if chunk.has_dictionary_page and chunk.dictionary_page_offset:
        start = min(start, chunk.dictionary_page_offset)
    return start, start + chunk.total_compressed_size


def _spans(chunks: Sequence[Any], nbytes: int) -> list[tuple[int, int]]:
    """Where stored columns lie, joined where little lies between."""
    places = [(start, min(nbytes, stop + _SLACK_BYTES)) for start, stop in map(_place, chunks)]
    found: list[tuple[int, int]] = []
    for start, stop in sorted(places):
        if found and start - found[-1][1] <= _GAP_BYTES:
            found[-1] = (found[-1][0], max(found[-1][1], stop))
        else:
            found.append((start, stop))
    return found
