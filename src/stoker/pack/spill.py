"""What the first pass of a shuffle leaves for the second: the rows of a piece, dealt out to the outputs.

A spill is kept in memory if all of the data fits, else in a folder; either way an output takes its slice of each.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stoker.pack.keys import Keys, owner

KEY = "__key__"
_INDEX, _ROWS, _TABLE = "index.npy", "rows.bin", "table.arrow"


def deal(found: Keys, outputs: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The order that brings the rows of each output together, and where each output's rows begin."""
    owners = owner(found, outputs)
    order = np.argsort(owners, kind="stable")
    return order, np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=outputs))])


class RecordSpill:
    """Rows of one size."""

    def __init__(self, bounds: NDArray[np.int64], found: Keys, rows: NDArray[np.uint8]) -> None:
        self._bounds, self._keys, self._rows = bounds, found, rows

    def save(self, folder: Path) -> None:
        """Write it: the keys, then the rows."""
        with (folder / _ROWS).open("wb") as file:
            file.write(self._keys.data)
            file.write(self._rows.data)
            file.flush()
            os.fsync(file.fileno())
        np.save(folder / _INDEX, self._bounds)

    def slice(self, output: int) -> tuple[Keys, NDArray[np.uint8]]:
        """The keys and rows of one output."""
        start, stop = self._bounds[output : output + 2]
        return self._keys[start:stop], self._rows[start:stop]


class SavedRecords:
    """A spill of rows of one size in a folder; a slice is two reads."""

    def __init__(self, folder: Path, row_bytes: int) -> None:
        self._file = folder / _ROWS
        self._bounds: NDArray[np.int64] = np.load(folder / _INDEX, allow_pickle=False)
        self._row_bytes = row_bytes

    def slice(self, output: int) -> tuple[Keys, NDArray[np.uint8]]:
        """The keys and rows of one output."""
        start, stop = (int(at) for at in self._bounds[output : output + 2])
        count = stop - start
        found = np.fromfile(self._file, np.uint64, count, offset=8 * start)
        offset = 8 * int(self._bounds[-1]) + self._row_bytes * start
        rows = np.fromfile(self._file, np.uint8, count * self._row_bytes, offset=offset)
        return found, rows.reshape(count, self._row_bytes)


class TableSpill:
    """Rows of a table."""

    def __init__(self, table: pa.Table, found: Keys, outputs: int) -> None:
        order, self._bounds = deal(found, outputs)
        dealt = table.append_column(KEY, pa.array(found)).take(pa.array(order))
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
    order = np.argsort(table.column(KEY).to_numpy(), kind="stable")
    return table.drop_columns([KEY]).take(pa.array(order)).combine_chunks()
