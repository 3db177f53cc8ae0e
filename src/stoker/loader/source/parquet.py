"""Parquet files: row groups are the blocks, decoded by Arrow in threads, columns gathered with no Python per row."""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

try:
    import resource
except ImportError:  # not on every system
    resource = None  # type: ignore[assignment]

from stoker.errors import (
    CorruptError,
    DataError,
    EmptyFileError,
    NoDataError,
    OtherTypeError,
    UsageError,
    VanishedError,
)
from stoker.loader.source.blocks import Ints, SizedBlocks
from stoker.loader.source.interface import Batch, Field, Lease, Pick, Ragged, Skipped, Source
from stoker.loader.source.paths import fingerprint, nbytes
from stoker.loader.source.row_group import (
    ALIGN,
    Lists,
    Loaded,
    Stack,
    decoded,
    field_of,
    offset_bytes,
    pack,
    plain,
    runs_of,
    single,
)
from stoker.loader.source.runs import texts

_FILES_OPEN_MOST, _DESCRIPTOR_SHARE = 64, 1 / 4
"""Files that each thread keeps open, at most, and the share of the descriptors that all threads together may have:
opening one, and reading its footer, costs some hundredths of decoding a row group of a thousand events."""
_BYTE = np.dtype(np.uint8)
_TEXT_BYTES = 32
"""What a string is taken to need, where a file does not say."""


@dataclass(frozen=True, slots=True)
class _Group:
    """One row group: where it is, and what it takes."""

    file: int
    group: int
    first_row: int
    """Its first row in the file."""
    rows: int
    decoded_bytes: int
    stored_bytes: int


class ParquetSource(Source):
    """Decoded row groups. Use `stoker.open("events/*.parquet")`."""

    kind = "parquet"
    holds_blocks = True
    splits = True

    def __init__(
        self,
        paths: Sequence[str],
        *,
        columns: Sequence[str] | None = None,
        on_error: Literal["raise", "skip"] = "raise",
    ) -> None:
        self._options: dict[str, Any] = {"columns": columns, "on_error": on_error}
        self._given = list(paths)
        self._columns = None if columns is None else list(columns)
        self._local = threading.local()
        self._schema: pa.Schema | None = None
        self._paths: list[str] = []
        self._sizes: list[int] = []
        self._groups: list[_Group] = []
        self.skipped = ()
        for path in paths:
            try:
                self._add(path)
            except DataError as error:
                if on_error == "raise":
                    raise
                self.skipped += (Skipped(error.path, error.row or 0, 0, error.reason),)
        if not self._groups:
            raise NoDataError(f"none of {len(paths)} files can be loaded; the first: {self.skipped[0].reason}")
        self.blocks = SizedBlocks([group.rows for group in self._groups])
        self.row_bytes = sum(group.decoded_bytes for group in self._groups) / self.blocks.rows
        slack = 4 * ALIGN * len(self.fields)
        self._usual_bytes = max(group.decoded_bytes for group in self._groups) + slack
        ends = np.cumsum([group.rows for group in self._groups])
        files = np.array([group.file for group in self._groups])
        last = np.flatnonzero(np.diff(files, append=-1))
        self._starts = np.concatenate([[0], ends[last]])

    def _look(self, path: str) -> tuple[Any, pa.Schema, int]:
        """A file's metadata, schema and size."""
        if (size := nbytes(path)) == 0:
            raise EmptyFileError(path, "the file is empty; expected Parquet")
        return *footer(path, path), size

    def _add(self, path: str) -> None:
        metadata, schema, nbytes = self._look(path)
        if metadata.num_rows == 0:
            raise EmptyFileError(path, "has no row")
        if self._schema is None:
            self._schema = self._choose(path, schema)
            self.fields = tuple(field_of(column) for column in self._schema)
            self._element_bytes = [
                int(np.prod(field.shape, dtype=np.int64)) * (1 if field.text else field.dtype.itemsize)
                for field in self.fields
            ]
            self._widths = [offset_bytes(plain(column.type)) for column in self._schema]
        elif (problem := _difference(self._schema, schema)) is not None:
            raise OtherTypeError(path, f"{problem}, as in {self._paths[0]}")
        file, first = len(self._paths), 0
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            if group.num_rows:
                self._groups.append(self._measure(group, file, number, first))
            first += group.num_rows
        self._paths.append(path)
        self._sizes.append(nbytes)

    def _choose(self, path: str, schema: pa.Schema) -> pa.Schema:
        names = schema.names if self._columns is None else self._columns
        if not names:
            raise UsageError(f"columns is empty; expected some of {', '.join(schema.names)}")
        for name in names:
            count = schema.names.count(name)
            if not count:
                raise UsageError(f"no column is called {name}; {path} has {', '.join(schema.names)}")
            if count > 1:
                raise UsageError(
                    f"{path} has {count} columns called {name}; leave them out with columns=, or rewrite it"
                )
        return pa.schema([schema.field(name) for name in names])

    def _measure(self, group: Any, file: int, number: int, first: int) -> _Group:
        """The memory that a row group will take: its values times their size, which the metadata tells."""
        decoded = stored = 0
        for field, chunk in self._chunks(group):
            stored += chunk.total_compressed_size
            size = field.dtype.itemsize or _TEXT_BYTES
            decoded += max(chunk.num_values * size, chunk.total_uncompressed_size if field.text else 0)
            decoded += group.num_rows * 4 if field.ragged or field.text else 0
        return _Group(file, number, first, group.num_rows, decoded, stored)

    def _chunks(self, group: Any) -> Iterator[tuple[Field, Any]]:
        """The stored columns of a row group that are wanted."""
        fields = {field.name: field for field in self.fields}
        for index in range(group.num_columns):
            chunk = group.column(index)
            name = chunk.path_in_schema  # the column's, which may have dots, and of a list more behind it
            while name and name not in fields:
                name = name.rpartition(".")[0]
            if name in fields:
                yield fields[name], chunk

    # ---- blocks

    def load(self, block: int, lease: Lease) -> Loaded:
        """Read and decode one row group."""
        group = self._groups[block]
        path = self._paths[group.file]
        names = [field.name for field in self.fields]
        file = self._opened(block)
        try:
            table = file().read_row_group(group.group, columns=names, use_threads=False)
            arrays = [single(table.column(name)) for name in names]
            columns = [decoded(field, array) for field, array in zip(self.fields, arrays, strict=True)]
        except FileNotFoundError as error:
            raise VanishedError(path, "was there when it was opened, and is not any more", group.first_row) from error
        except (OSError, pa.ArrowException, ValueError) as error:
            reason = f"rows {group.first_row} to {group.first_row + group.rows - 1} cannot be decoded ({_line(error)})"
            raise CorruptError(path, reason, group.first_row) from error
        if table.num_rows != group.rows:
            raise CorruptError(path, f"{table.num_rows} rows were decoded; expected {group.rows}", group.first_row)
        return pack(columns, group.stored_bytes, self._usual_bytes, lease)

    def _opened(self, block: int) -> Callable[[], pq.ParquetFile]:
        """What gives a file that a block can be read from."""
        return partial(self._file, self._groups[block].file)

    def _file(self, number: int) -> pq.ParquetFile:
        """The thread's own handle of a file: Arrow's readers are not made for sharing."""
        files: dict[int, pq.ParquetFile] = self._local.__dict__.setdefault("files", {})
        file = files.pop(number, None)
        if file is None:
            path = Path(self._paths[number])
            if path.stat().st_size != self._sizes[number]:
                raise OSError("the file has changed since it was opened")
            file = pq.ParquetFile(path, pre_buffer=False)  # a local disk needs no other threads to read ahead
            while len(files) >= _files_open():
                files.pop(next(iter(files))).close()
        files[number] = file
        return file

    def stack(self, loaded: Sequence[Any]) -> Stack:
        """Addresses of every column of a window's blocks."""
        return Stack.of(loaded, len(self.fields))

    # ---- batches

    def gather(self, pick: Pick, lease: Lease) -> Batch:
        """One gather per column, from the decoded blocks of the windows."""
        stack = Stack.joined(pick.held)
        values = stack.values[:, pick.slot]
        starts = runs_of(pick)
        lists: dict[int, Lists] = {}
        batch: Batch = {}
        for index, field in enumerate(self.fields):
            size = self._element_bytes[index]
            if not (field.ragged or field.text):
                tensor, raw = lease(len(pick.rows), field.shape, field.dtype)
                stack.memory.fixed(values[index] + pick.inner * size, size, raw)
                batch[field.name] = tensor
                continue
            twin = stack.twins[index]
            if twin not in lists:
                lists[twin] = Lists.between(*self._bounds(stack, twin, pick), starts)
            found = lists[twin]
            shape, dtype = ((), _BYTE) if field.text else (field.shape, field.dtype)
            tensor, raw = lease(int(found.offsets[-1]), shape, dtype)
            stack.memory.ragged(values[index][found.runs] + found.first * size, found.lengths * size, raw)
            is_string = field.dtype.kind == "U"
            batch[field.name] = (
                texts(raw, found.offsets, text=is_string) if field.text else Ragged(tensor, found.offsets)
            )
        return batch

    def _bounds(self, stack: Stack, index: int, pick: Pick) -> tuple[Ints, Ints]:
        """Where each row's list begins and ends, in elements of its block."""
        width = self._widths[index]
        return stack.memory.bounds(stack.offsets[index][pick.slot] + pick.inner * width, width)

    def lengths(self, pick: Pick) -> Ints:
        """The elements of each row, over all ragged fields."""
        stack = Stack.joined(pick.held)
        total = np.zeros(len(pick.rows), np.int64)
        for index, field in enumerate(self.fields):
            if field.ragged:
                first, last = self._bounds(stack, index, pick)
                total += last - first
        return total

    def locate(self, row: int) -> tuple[str, int]:
        """The file of a row, and its number inside that file."""
        group = self._groups[int(self.blocks.of(np.array([row]))[0])]
        first = int(self._starts[group.file])
        return self._paths[group.file], row - first

    def paths(self) -> list[str]:
        """The files, in order."""
        return list(self._paths)

    def file_starts(self) -> Ints:
        """The first row of each file, and the number of rows at the end."""
        return self._starts

    def fingerprint(self) -> dict[str, Any]:
        """Files, sizes, row counts and columns."""
        rows = np.diff(self._starts).tolist()
        schema = ", ".join(f"{column.name}: {column.type}" for column in self._schema or ())
        return fingerprint(self.kind, schema, list(zip(self._paths, self._sizes, rows, strict=True)))

    def close(self) -> None:
        """Close files."""
        self._local = threading.local()

    def __getstate__(self) -> dict[str, Any]:
        return {"paths": self._given, "options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["paths"], **state["options"])  # type: ignore[misc]


@cache
def _files_open() -> int:
    """Files that each of as many threads as there are cores may keep open."""
    limit = -1 if resource is None else resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit < 0:  # none
        return _FILES_OPEN_MOST
    return max(4, min(_FILES_OPEN_MOST, int(limit * _DESCRIPTOR_SHARE / (os.cpu_count() or 1))))


def footer(path: str, source: Any) -> tuple[Any, pa.Schema]:
    """What a file, or what stands for it, says of itself."""
    try:
        with pq.ParquetFile(source) as file:
            return file.metadata, file.schema_arrow
    except (OSError, pa.ArrowException) as error:
        raise CorruptError(path, f"its footer cannot be read ({_line(error)}); cut short, or not Parquet") from error


def _difference(expected: pa.Schema, schema: pa.Schema) -> str | None:
    for column in expected:
        at = schema.get_all_field_indices(column.name)
        if not at:
            return f"has no column {column.name}; expected {column.type}"
        if len(at) > 1:
            return f"has {len(at)} columns {column.name}; expected one, {column.type}"
        if schema.field(at[0]).type != column.type:
            return f"column {column.name} is {schema.field(at[0]).type}; expected {column.type}"
    return None


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())
