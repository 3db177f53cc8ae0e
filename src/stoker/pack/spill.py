"""What the first pass of a shuffle leaves for the second: the rows of a piece, dealt out to the outputs.

A spill is kept in memory if all of the data fits, else in a folder; either way an output takes its slice of each.
"""

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stoker.pack.keys import Keys, owner

_KEY = "key"
_INDEX, _ROWS = "index.npy", "rows.bin"

STEP_BYTES = 1 << 20


def deal(found: Keys, outputs: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The order that brings the rows of each output together, and where each output's rows begin."""
    owners = owner(found, outputs)
    order = np.argsort(owners, kind="stable")
    return order, np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=outputs))])


class Buffers(threading.local):
    """Memory that a thread uses again and again: fresh pages cost four times what the copy into them does."""

    def get(self, name: str, rows: int, row_bytes: int) -> NDArray[np.uint8]:
        """An array of this size; what is in it is whatever was there last."""
        held = self.__dict__.get(name)
        if held is None or held.size < rows * row_bytes:
            self.__dict__[name] = held = np.empty(rows * row_bytes, np.uint8)
        found: NDArray[np.uint8] = held[: rows * row_bytes].reshape(rows, row_bytes)
        return found


buffers = Buffers()


class RecordSpill:
    """Rows of one size, in memory: they stay where they are, and an output takes its own out of them."""

    def __init__(self, found: Keys, rows: NDArray[np.uint8], outputs: int) -> None:
        self._order, self._bounds = deal(found, outputs)
        self._keys, self.rows = found, rows

    def save(self, folder: Path) -> None:
        """Write it: the keys, then the rows, those of each output together."""
        dealt = buffers.get("dealt", *self.rows.shape)
        np.take(self.rows, self._order, axis=0, out=dealt, mode="clip")
        with (folder / _ROWS).open("wb") as file:
            file.write(self._keys[self._order].data)
            file.write(dealt.data)
            file.flush()
            os.fsync(file.fileno())
        np.save(folder / _INDEX, self._bounds)

    def keys(self, output: int) -> Keys:
        """The keys of one output's rows."""
        return self._keys[self.mine(output)]

    def mine(self, output: int) -> NDArray[np.int64]:
        """One output's rows, by their number here."""
        start, stop = self._bounds[output : output + 2]
        return self._order[start:stop]


class SavedRecords:
    """A spill of rows of one size in a folder."""

    def __init__(self, folder: Path, row_bytes: int) -> None:
        self._file = folder / _ROWS
        self._bounds: NDArray[np.int64] = np.load(folder / _INDEX, allow_pickle=False)
        self._row_bytes = row_bytes

    def keys(self, output: int) -> Keys:
        """The keys of one output's rows."""
        start, stop = (int(at) for at in self._bounds[output : output + 2])
        return np.fromfile(self._file, np.uint64, stop - start, offset=8 * start)

    def scatter(self, output: int, ranks: NDArray[np.int64], into: NDArray[np.uint8]) -> None:
        """Put one output's rows where their ranks say."""
        with self._file.open("rb", buffering=0) as file:
            file.seek(8 * int(self._bounds[-1]) + self._row_bytes * int(self._bounds[output]))
            for part in steps(len(ranks), self._row_bytes):
                some = buffers.get("part", len(ranks[part]), self._row_bytes)
                read_exactly(file, some)
                into[ranks[part]] = some


def steps(rows: int, row_bytes: int) -> Iterator[slice]:
    """Some rows at a time, few enough to stay in the processor's cache."""
    step = max(1, STEP_BYTES // row_bytes)
    for at in range(0, rows, step):
        yield slice(at, min(rows, at + step))


def read_exactly(file: Any, into: NDArray[np.uint8]) -> int:
    """Fill an array from a file; returns how many bytes there were, fewer only at the end of the file."""
    view, at = into.reshape(-1).data, 0
    while at < len(view):
        got = file.readinto(view[at:])
        if not got:
            break
        at += got
    return at


class TableSpill:
    """Rows of a table."""

    def __init__(self, table: pa.Table, found: Keys, outputs: int) -> None:
        order, self._bounds = deal(found, outputs)
        dealt = table.append_column(_KEY, pa.array(found)).take(pa.array(order))
        self._table = dealt.combine_chunks()

    @property
    def nbytes(self) -> int:
        """Memory that it takes."""
        return int(self._table.nbytes)

    def save(self, path: Path) -> None:
        """Write it, a record batch for each output."""
        with path.open("wb") as file:
            with pa.ipc.new_file(file, self._table.schema) as writer:
                for output in range(len(self._bounds) - 1):
                    writer.write_batch(_one_batch(self.slice(output)))
            file.flush()
            os.fsync(file.fileno())

    def slice(self, output: int) -> pa.Table:
        """The rows of one output, with their keys."""
        start, stop = (int(at) for at in self._bounds[output : output + 2])
        return self._table.slice(start, stop - start)


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], table.schema)


class SavedTable:
    """A spill of table rows in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def slice(self, output: int) -> pa.Table:
        """The rows of one output, with their keys."""
        with pa.OSFile(str(self._path)) as file:
            return pa.Table.from_batches([pa.ipc.open_file(file).get_batch(output)])


def merge(slices: list[Any]) -> pa.Table:
    """The rows of one output in the order of their keys."""
    table = pa.concat_tables(slices)
    last = table.num_columns - 1  # not by name: a column of the data may have the same
    order = np.argsort(table.column(last).to_numpy(), kind="stable")
    return table.remove_column(last).take(pa.array(order)).combine_chunks()
