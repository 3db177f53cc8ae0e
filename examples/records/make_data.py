"""Make shogi-like records: 32 .npy shards of a structured dtype, 3,097 bytes a record."""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import folder

RECORD = np.dtype(
    [
        ("id", "u8"),
        ("boardIdPositions", "u1", (9, 9)),
        ("piecesInHand", "u1", (14,)),
        ("moveLabel", "f2", (1496,)),
        ("resultValue", "f2"),
    ]
)
SHARDS = 32
SHARD_RECORDS = 2_000  # at scale 1; the note has 32,083,062 records in 32 shards, which is scale 501
PIECE_KINDS = 30


def plan(scale: float) -> folder.Sizes:
    shard_records = max(8, round(SHARD_RECORDS * scale))
    records = SHARDS * shard_records
    return {"files": SHARDS, "records": records, "shard_records": shard_records, "bytes": records * RECORD.itemsize}


def write(out: Path, sizes: folder.Sizes, seed: int, tick: folder.Tick) -> None:
    for shard in range(SHARDS):
        random = np.random.default_rng([seed, shard])
        path = out / f"shard-{shard:02d}.npy"
        memmap = np.lib.format.open_memmap(path, mode="w+", dtype=RECORD, shape=(sizes["shard_records"],))
        for start in range(0, len(memmap), 10_000):  # a shard of the full scale is larger than it is kind to hold
            _fill(memmap[start : start + 10_000], shard * len(memmap) + start, random)
        memmap.flush()
        tick()


def _fill(records: np.ndarray, first_id: int, random: np.random.Generator) -> None:
    count = len(records)
    records["id"] = np.arange(first_id, first_id + count)
    records["boardIdPositions"] = random.integers(0, PIECE_KINDS, (count, 9, 9))
    records["piecesInHand"] = random.integers(0, 3, (count, 14))
    # The move depends on the board, so that there is something to learn: about one non-zero of 1,496.
    played = (records["boardIdPositions"][:, 4, 4].astype(int) * 37 + random.integers(0, 8, count)) % 1496
    records["moveLabel"] = 0
    records["moveLabel"][np.arange(count), played] = 1
    records["resultValue"] = random.integers(0, 3, count) / 2


if __name__ == "__main__":
    folder.make("records", __doc__, plan, write)
