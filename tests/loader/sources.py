"""Small data sets of every kind of source, for the laws. Row i of all rows has `id` i."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

import stoker
from stoker.loader.source.interface import Source

RECORD = np.dtype([("id", "<i8"), ("odd", "u1", (3,)), ("half", "<f2", (5,)), ("big", ">i4")])


def records(first: int, rows: int) -> np.ndarray:
    """Rows whose every field follows from their id."""
    ids = np.arange(first, first + rows)
    found = np.zeros(rows, RECORD)
    found["id"] = ids
    found["odd"] = (ids[:, None] * 7 + np.arange(3)) % 251
    found["half"] = (ids[:, None] * 3 + np.arange(5)) % 1021
    found["big"] = ids * 5
    return found


def npy(folder: Path, sizes: Sequence[int]) -> Source:
    """Shards of an odd row size, blocks of four rows."""
    from stoker.loader.source.npy import NpySource

    folder.mkdir(parents=True, exist_ok=True)
    first = 0
    for number, rows in enumerate(sizes):
        np.save(folder / f"{number:03}.npy", records(first, rows))
        first += rows
    return NpySource(sorted(str(path) for path in folder.glob("*.npy")), block_rows=4)


def check(batch: dict[str, Any]) -> list[int]:
    """The ids of a batch, after every other field was compared with what its id says."""
    if "pulses" in batch:
        return _check_parquet(batch)
    got = {name: np.asarray(value) for name, value in batch.items()}
    expected = np.concatenate([records(int(i), 1) for i in got["id"]])
    for name in RECORD.names or ():
        np.testing.assert_array_equal(got[name], expected[name])
    return [int(i) for i in got["id"]]


def parquet(folder: Path, sizes: Sequence[int]) -> Source:
    """Files of scalar, fixed, ragged and text columns in row groups of four."""
    folder.mkdir(parents=True, exist_ok=True)
    first = 0
    for number, rows in enumerate(sizes):
        ids = np.arange(first, first + rows)
        odd = pa.FixedSizeListArray.from_arrays(pa.array(records(first, rows)["odd"].ravel()), 3)
        pulses = pa.array([pulse(i) for i in ids.tolist()], pa.list_(pa.int16()))
        flags = pa.array([[value % 2 == 0 for value in pulse(i)] for i in ids.tolist()], pa.list_(pa.bool_()))
        columns = {"id": ids, "odd": odd, "pulses": pulses, "flags": flags, "name": [f"nr {i}" for i in ids.tolist()]}
        pq.write_table(pa.table(columns), folder / f"{number:03}.parquet", row_group_size=4)
        first += rows
    return stoker.open(folder)


def pulse(i: int) -> list[int]:
    """The ragged values of a row; some rows have none."""
    return [(i * 11 + k) % 3001 for k in range(i * 7 % 13)]


def _check_parquet(batch: dict[str, Any]) -> list[int]:
    ids = [int(i) for i in batch["id"]]
    np.testing.assert_array_equal(batch["odd"], [records(i, 1)["odd"][0] for i in ids])
    values, offsets = batch["pulses"]
    flags, same = batch["flags"]
    assert same is offsets
    assert flags.dtype is torch.bool
    for row, i in enumerate(ids):
        assert values[offsets[row] : offsets[row + 1]].tolist() == pulse(i)
        assert flags[offsets[row] : offsets[row + 1]].tolist() == [value % 2 == 0 for value in pulse(i)]
    assert batch["name"] == [f"nr {i}" for i in ids]
    return ids


KINDS: dict[str, Callable[[Path, Sequence[int]], Source]] = {"npy": npy, "parquet": parquet}
