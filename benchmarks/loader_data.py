"""Data sets for the loader's benchmarks: the records and the events of the cases, made small."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

RECORD = np.dtype(
    [
        ("id", "<u8"),
        ("boardIdPositions", "u1", (9, 9)),
        ("piecesInHand", "u1", (14,)),
        ("moveLabel", "<f2", (1496,)),
        ("resultValue", "<f2"),
    ]
)
SHARD_ROWS = 60_000
FILE_EVENTS = 8_000


def records(folder: Path, shards: int) -> Path:
    """Shards of 3,097-byte records; moveLabel holds one non-zero, as in the case."""
    folder = folder / f"records-{shards}"
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    for number in range(shards):
        path = folder / f"{number:03}.npy"
        if path.exists():
            continue
        rows = np.lib.format.open_memmap(path, "w+", RECORD, (SHARD_ROWS,))
        ids = np.arange(SHARD_ROWS) + number * SHARD_ROWS
        rows["id"] = ids
        rows["boardIdPositions"] = random.integers(0, 31, (SHARD_ROWS, 9, 9), np.uint8)
        rows["moveLabel"][np.arange(SHARD_ROWS), random.integers(0, 1496, SHARD_ROWS)] = 1
        rows["resultValue"] = random.random(SHARD_ROWS)
        rows.flush()
    return folder


def events(folder: Path, files: int) -> Path:
    """Parquet files of ragged events: about 180 pulses each, from 5 to 5,000; zstd, groups of 1,000 rows."""
    folder = folder / f"events-{files}"
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    for number in range(files):
        path = folder / f"{number:03}.parquet"
        if path.exists():
            continue
        lengths = np.clip(random.lognormal(np.log(130), 0.9, FILE_EVENTS), 5, 5000).astype(int)
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
        pulses = int(lengths.sum())
        columns = {
            "event_id": np.arange(FILE_EVENTS) + number * FILE_EVENTS,
            "azimuth": random.random(FILE_EVENTS, np.float32),
            "zenith": random.random(FILE_EVENTS, np.float32),
            "sensor_id": pa.ListArray.from_arrays(offsets, random.integers(0, 5160, pulses, np.int16)),
            "time": pa.ListArray.from_arrays(offsets, np.sort(random.integers(5000, 25000, pulses))),
            "charge": pa.ListArray.from_arrays(offsets, (random.integers(1, 200, pulses) / 40).astype(np.float32)),
            "auxiliary": pa.ListArray.from_arrays(offsets, pa.array(random.random(pulses) < 0.7)),
        }
        pq.write_table(pa.table(columns), path, compression="zstd", row_group_size=1000)
    return folder


def sparse(path: Path, rows: int) -> Path:
    """Rows of 16 bytes that take no disk: a file with nothing written into it."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        np.lib.format.open_memmap(path, "w+", np.dtype("<f4"), (rows, 4))
    return path
