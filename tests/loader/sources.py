"""Small data sets of every kind of source, for the laws. Row i of all rows has `id` i."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

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


def check(batch: dict[str, object]) -> list[int]:
    """The ids of a batch, after every other field was compared with what its id says."""
    got = {name: np.asarray(value) for name, value in batch.items()}
    expected = np.concatenate([records(int(i), 1) for i in got["id"]])
    for name in RECORD.names or ():
        np.testing.assert_array_equal(got[name], expected[name])
    return [int(i) for i in got["id"]]


KINDS: dict[str, Callable[[Path, Sequence[int]], Source]] = {"npy": npy}

__all__ = ["KINDS", "check", "npy", "records", "stoker"]
