"""Shards of a structured or plain dtype in .npy files, memory-mapped and never copied whole.

All shards are one address range for the gather: a batch is one gather of byte runs, wherever its rows lie, however odd
the row size, straight into the batch's buffers.
"""

import errno
import math
import mmap
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

try:
    import resource
except ImportError:  # not on every system
    resource = None  # type: ignore[assignment]

from stoker.errors import (
    DataError,
    LoaderError,
    NoDataError,
    OtherTypeError,
    TruncatedError,
    UsageError,
)
from stoker.loader.source import advice
from stoker.loader.source.blocks import EvenBlocks, Ints
from stoker.loader.source.header import Header, read_header
from stoker.loader.source.interface import Batch, Field, Lease, Pick, Skipped, Source
from stoker.loader.source.paths import fingerprint
from stoker.loader.source.runs import Memory

BLOCK_BYTES = 1 << 20
"""A block of about so many bytes reads at full speed from any disk, and its borders weigh little; smaller blocks would
not shuffle better, since how many rows a window mixes is what counts."""

PLAIN = "data"
"""The name of the only field of a plain array."""

_CHECK_EASE = 100
"""Checking takes at most a hundredth of the time; with few shards that is before every batch."""

_CHECK_MOST_S = 0.05
"""But never rarer: on a busy machine one slow check must not leave seconds without any."""


@dataclass(frozen=True, slots=True)
class _Column:
    """Where a field lies inside a row, and the dtype its tensor gets."""

    field: Field
    offset: int
    row_bytes: int
    swapped: bool


def _columns(dtype: np.dtype[Any], names: Sequence[str] | None) -> list[_Column]:
    record = dtype.base.fields
    fields = (
        {name: (_with_axes(record[name][0], dtype.shape), record[name][1]) for name in dtype.base.names or ()}
        if record
        else {PLAIN: (dtype, 0)}
    )
    if names is not None and not names:
        raise UsageError(f"columns is empty; expected some of {', '.join(fields)}")
    unknown = [name for name in names or () if name not in fields]
    if unknown:
        raise UsageError(f"no field is called {unknown[0]}; there are {', '.join(fields)}")
    chosen = list(fields) if names is None else list(names)
    return [_column(name, *fields[name]) for name in chosen]


def _with_axes(dtype: np.dtype[Any], axes: tuple[int, ...]) -> np.dtype[Any]:
    return np.dtype((dtype.base, (*axes, *dtype.shape)))


def _column(name: str, dtype: np.dtype[Any], offset: int) -> _Column:
    shape, element = dtype.shape, dtype.base
    size = dtype.itemsize
    swapped = not element.isnative
    if element.kind in "SVU":  # text and raw bytes arrive as bytes (code points, for unicode)
        unit = np.dtype("u1") if element.kind in "SV" else np.dtype("i4")
        shape, element = (*shape, element.itemsize // unit.itemsize), unit
    elif element.kind in "mM":
        element = np.dtype("i8")
    element = element.newbyteorder("=")
    try:
        torch.from_numpy(np.empty(0, element))
    except TypeError:
        raise UsageError(
            f"field {name} is {element}, which torch has no type for; leave it out with columns="
        ) from None
    return _Column(Field(name, element, shape), offset, size, swapped)


def _major_faults() -> int:
    """How often this thread had to wait for the disk."""
    return 0 if resource is None else resource.getrusage(resource.RUSAGE_THREAD).ru_majflt


class NpySource(Source):
    """Mapped shards. Use `stoker.open("shards/*.npy")`."""

    kind = "npy"
    splits = True

    def __init__(
        self,
        paths: Sequence[str],
        *,
        columns: Sequence[str] | None = None,
        block_rows: int | None = None,
        on_error: Literal["raise", "skip"] = "raise",
    ) -> None:
        self._paths = list(paths)
        self._options: dict[str, Any] = {"columns": columns, "block_rows": block_rows, "on_error": on_error}
        self._shards: list[tuple[str, Header, int]] = []
        self.skipped = ()
        for path in paths:
            try:
                self._add(path)
            except DataError as error:
                if on_error == "raise":
                    raise
                self.skipped += (Skipped(error.path, error.row or 0, 0, error.reason),)
        if not self._shards:
            raise NoDataError(f"none of {len(paths)} files can be loaded; the first: {self.skipped[0].reason}")
        row = self._shards[0][1].row_dtype
        self._columns = _columns(row, columns)
        self.fields = tuple(column.field for column in self._columns)
        self._offsets = np.array([column.offset for column in self._columns], np.int64)
        # A row with axes of its own is so many records after each other; a field is gathered from each.
        self._records = math.prod(row.shape) if row.base.fields else 1
        self._within = np.arange(self._records) * row.base.itemsize
        self._sizes = np.array([column.row_bytes // self._records for column in self._columns], np.int64)
        self._stride = self._shards[0][1].row_bytes
        self.row_bytes = float(self._stride)
        self._starts = np.concatenate([[0], np.cumsum([rows for _, _, rows in self._shards])])
        size = block_rows or 1 << max(0, round(np.log2(BLOCK_BYTES / self._stride)))
        self._block_rows = size
        self.blocks = EvenBlocks(int(self._starts[-1]), size)
        self._map()

    def _look(self, path: str) -> tuple[Header, int]:
        """A file's header and size."""
        return read_header(path), Path(path).stat().st_size

    def _add(self, path: str) -> None:
        header, nbytes = self._look(path)
        if self._shards and header.row_dtype != self._shards[0][1].row_dtype:
            first, expected = self._shards[0][0], self._shards[0][1].row_dtype
            raise OtherTypeError(path, f"a row is {header.row_dtype}; expected {expected}, as in {first}")
        rows = header.shape[0]
        whole = (nbytes - header.offset) // header.row_bytes
        if whole < rows:
            cut = TruncatedError(
                path, f"cut short: the header says {rows} rows, {max(0, whole)} are there", max(0, whole)
            )
            if self._options["on_error"] == "raise" or whole <= 0:
                raise cut
            self.skipped += (Skipped(path, whole, rows - whole, cut.reason),)
        self._shards.append((path, header, min(rows, whole)))

    def _map(self) -> None:
        """Map every shard, and lay one array of bytes over all of them."""
        self._cold = False
        self._check_due_s = 0.0
        self._maps: list[mmap.mmap] = []
        addresses = []
        for path, header, rows in self._shards:
            mapped = self._mapped(path, header.offset + rows * self._stride)
            self._maps.append(mapped)
            addresses.append(np.frombuffer(mapped, np.uint8).ctypes.data + header.offset)
        sizes = np.diff(self._starts) * self._stride
        self._memory = Memory(min(addresses), int((np.array(addresses) + sizes).max()))
        # Row r of shard s lies at _origin[s] + r · stride, for the row's number r in the whole source.
        self._origin = np.array(addresses, np.int64) - self._starts[:-1] * self._stride

    def _mapped(self, path: str, nbytes: int) -> mmap.mmap:
        """A mapping, which keeps a descriptor: whether its file was cut short is seen by that."""
        try:
            with Path(path).open("rb") as file:
                return mmap.mmap(file.fileno(), nbytes, access=mmap.ACCESS_READ)
        except OSError as error:
            if error.errno != errno.EMFILE:
                raise
            most = "" if resource is None else f" {resource.getrlimit(resource.RLIMIT_NOFILE)[0]}"
            raise LoaderError(
                f"{len(self._shards)} shards need a file descriptor each, and this process may have{most} in all; "
                "allow more with ulimit -n, or make fewer shards of them with stoker pack"
            ) from error

    def gather(self, pick: Pick, lease: Lease) -> Batch:
        """One copy per field of a row, from the mapped files into the batch's buffers."""
        memory, begins = self._places(pick)
        faults = _major_faults()
        leased = [lease(len(pick.rows), column.field.shape, column.field.dtype) for column in self._columns]
        raws = [raw for _, raw in leased]
        if self._records > 1:
            begins = (begins[:, None] + self._within).ravel()
            raws = [raw.view(len(begins), -1) for raw in raws]
        memory.parts(begins, self._offsets, self._sizes, raws)
        for column, (tensor, _) in zip(self._columns, leased, strict=True):
            if column.swapped:
                tensor.numpy().byteswap(inplace=True)
        if _major_faults() != faults:
            self._cold = True
        return {field.name: tensor for field, (tensor, _) in zip(self.fields, leased, strict=True)}

    def _places(self, pick: Pick) -> tuple[Memory, Ints]:
        """The memory that a batch's rows lie in, and where."""
        if time.perf_counter() > self._check_due_s:
            self._check()
        return self._memory, self._addresses(pick.rows)

    def _addresses(self, rows: Ints) -> Ints:
        shard = 0 if len(self._shards) == 1 else np.searchsorted(self._starts, rows, side="right") - 1
        addresses: Ints = rows * self._stride + self._origin[shard]
        return addresses

    def enter(self, first: Ints, sizes: Ints) -> None:
        """Read ahead what is not in the page cache, and keep what is touched to these rows."""
        if self._is_single(sizes):
            advice.at_random(*self._whole())
        else:
            advice.set_apart(*self._ranges(first, sizes))
        if self._cold:  # a thread had to wait for the disk
            self._cold = False
            advice.will_need(*self._ranges(first, sizes))

    def leave(self, first: Ints, sizes: Ints) -> None:
        """Take rows out of the process's resident memory."""
        # Single rows lie on pages that others share: there it is cheaper, and no worse, to forget them all.
        single = self._is_single(sizes)
        ranges = self._whole() if single else self._ranges(first, sizes)
        advice.forget(*ranges, within=self._whole())
        if not single:
            advice.join_again(*ranges)

    def _is_single(self, sizes: Ints) -> bool:
        return self._block_rows > 1 and bool((sizes == 1).all())

    def _check(self) -> None:
        """Refuse files that were cut short: reading a mapping past the end of its file ends the process."""
        begin = time.perf_counter()
        for (path, header, rows), mapped in zip(self._shards, self._maps, strict=True):
            left = (mapped.size() - header.offset) // self._stride
            if left < rows:
                raise TruncatedError(
                    path, f"was cut short while in use: {rows} rows were there, {max(0, left)} are", max(0, left)
                )
        now = time.perf_counter()
        self._check_due_s = now + min(_CHECK_MOST_S, _CHECK_EASE * (now - begin))

    def _whole(self) -> tuple[Ints, Ints]:
        """The addresses and sizes of all shards."""
        rows = np.diff(self._starts)
        return self._origin + self._starts[:-1] * self._stride, rows * self._stride

    def _ranges(self, first: Ints, sizes: Ints) -> tuple[Ints, Ints]:
        """The addresses and sizes of runs of rows; a run that crosses into the next shard is cut there."""
        shard = np.searchsorted(self._starts, first, side="right") - 1
        stop = np.minimum(first + sizes, self._starts[shard + 1])
        starts = self._origin[shard] + first * self._stride
        over = first + sizes > stop
        lengths = (stop - first) * self._stride
        if not over.any():
            return starts, lengths
        more = self._ranges(stop[over], (first + sizes - stop)[over])
        return np.concatenate([starts, more[0]]), np.concatenate([lengths, more[1]])

    def locate(self, row: int) -> tuple[str, int]:
        """The file of a row, and its number inside that file."""
        shard = int(np.searchsorted(self._starts, row, side="right")) - 1
        return self._shards[shard][0], row - int(self._starts[shard])

    def paths(self) -> list[str]:
        """The files, in order."""
        return [path for path, _, _ in self._shards]

    def file_starts(self) -> Ints:
        """The first row of each file, and the number of rows at the end."""
        return self._starts

    def fingerprint(self) -> dict[str, Any]:
        """Files, sizes, row counts and dtype."""
        files = [(path, header.offset + rows * self._stride, rows) for path, header, rows in self._shards]
        names = "" if self._options["columns"] is None else f" of which {', '.join(f.name for f in self.fields)}"
        return fingerprint(self.kind, f"{np.lib.format.dtype_to_descr(self._shards[0][1].row_dtype)}{names}", files)

    def __getstate__(self) -> dict[str, Any]:
        return {"paths": self._paths, "options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["paths"], **state["options"])  # type: ignore[misc]
