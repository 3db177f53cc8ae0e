"""Records and Parquet from a store with 30 ms a request: against the bare client, pyarrow's own S3, and local files.

    python benchmarks/tables.py [--megabytes 256] [--repeats 3] [--requests 32]

Prints a table of ratios of megabytes a second; both sides run in turn, and the median over the repeats counts.
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import obstore
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs
import pyarrow.parquet as pq
from obstore.store import S3Store

import stoker
from stoker.sim import Store

LATENCY_S = 0.03
SHARDS = 16
BATCH = 1024
RECORD = np.dtype([("board", "u1", (1024,)), ("hand", "<f4", (32,)), ("move", "<i8")])
COLD = 0.85
"""What a cold epoch must reach of the bare client's rate, as images must."""


def make(root: Path, megabytes: int) -> None:
    """The same rows as shards of records and as Parquet."""
    random = np.random.default_rng(0)
    rows = megabytes * 1_000_000 // RECORD.itemsize // SHARDS
    for number in range(SHARDS):
        shard = np.frombuffer(random.bytes(rows * RECORD.itemsize), RECORD)
        (root / "npy").mkdir(exist_ok=True)
        np.save(root / "npy" / f"{number:03}.npy", shard)
        offsets = pa.array(np.arange(rows + 1, dtype=np.int32) * 72)
        floats = np.concatenate([shard["board"].view("<f4"), shard["hand"]], axis=1).reshape(4, -1)
        columns = {
            name: pa.ListArray.from_arrays(offsets, pa.array(part)) for name, part in zip("xyze", floats, strict=True)
        }
        columns["move"] = shard["move"].copy()
        (root / "parquet").mkdir(exist_ok=True)
        pq.write_table(
            pa.table(columns), root / "parquet" / f"{number:03}.parquet", row_group_size=1000, use_dictionary=False
        )


class Bench:
    """One store, and every way to read what lies in it, in megabytes a second."""

    def __init__(self, served: Store, home: Path, requests: int) -> None:
        self.served, self.home, self.requests = served, home, requests
        self._numbers = count()
        self._access = {"endpoint": served.endpoint, "region": "x", "access_key_id": "a", "secret_access_key": "b"}

    def ours(self, kind: str, cache: Path | None, shuffle: bool = True) -> float:
        """An epoch from the store."""
        how: dict[str, Any] = {} if cache is None else {"cache": cache}
        how |= {"requests": self.requests, "store_options": self._access}
        return self._epoch(stoker.open(f"s3://{self.served.bucket}/{kind}/", **how), shuffle)

    def filling(self, kind: str) -> float:
        """An epoch that fills a cache."""
        return self.ours(kind, self.fresh())

    def local(self, kind: str) -> float:
        """An epoch from local files."""
        return self._epoch(stoker.open(self.served.root / kind), True)

    def _epoch(self, data: Any, shuffle: bool) -> float:
        with stoker.Loader(data, BATCH, shuffle=shuffle) as loader:
            begin = time.perf_counter()
            rows = sum(len(batch["move"]) for batch in loader)
            return rows * RECORD.itemsize / 1e6 / (time.perf_counter() - begin)

    def fresh(self) -> Path:
        """A cache that nobody has used."""
        return self.home / f"cache-{next(self._numbers)}"

    def bare(self, kind: str) -> float:
        """The client alone: the same objects in ranges of a megabyte, as many under way."""
        access: Any = self._access
        store = S3Store(self.served.bucket, config=access, client_options={"allow_http": True})
        sizes = {f"{kind}/{path.name}": path.stat().st_size for path in sorted((self.served.root / kind).iterdir())}
        ranges = [(key, at, min(size, at + (1 << 20))) for key, size in sizes.items() for at in range(0, size, 1 << 20)]

        async def all_ranges() -> int:
            gate = asyncio.Semaphore(self.requests)

            async def one(key: str, start: int, stop: int) -> int:
                async with gate:
                    return len(await obstore.get_range_async(store, key, start=start, end=stop))

            return sum(await asyncio.gather(*(one(*wanted) for wanted in ranges)))

        begin = time.perf_counter()
        nbytes = asyncio.run(all_ranges())
        return nbytes / 1e6 / (time.perf_counter() - begin)

    def arrow(self) -> float:
        """Pyarrow's dataset over its own S3 client, in order, without a shuffle."""
        where = pyarrow.fs.S3FileSystem(
            access_key="a",
            secret_key=self._access["secret_access_key"],
            endpoint_override=self.served.endpoint,
            region="x",
            scheme="http",
        )
        begin, rows = time.perf_counter(), 0
        for batch in ds.dataset(f"{self.served.bucket}/parquet", filesystem=where).to_batches(batch_size=BATCH):
            rows += batch.num_rows
        return rows * RECORD.itemsize / 1e6 / (time.perf_counter() - begin)


def interleaved(sides: dict[str, Callable[[], float]], repeats: int) -> dict[str, float]:
    found: dict[str, list[float]] = {name: [] for name in sides}
    for repeat in range(repeats):
        for name in list(sides) if repeat % 2 == 0 else reversed(list(sides)):
            found[name].append(sides[name]())
            print(f"  {name}: {found[name][-1]:,.0f} MB/s", file=sys.stderr)
    return {name: median(rates) for name, rates in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--requests", type=int, default=32)
    options = parser.parse_args()
    lines = ["| data | ours | MB/s | against | MB/s | ratio | wanted |", "|---|---|---:|---|---:|---:|---|"]
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "bucket").mkdir()
        make(home / "bucket", options.megabytes)
        with Store(home / "bucket", latency_s=LATENCY_S) as served:
            bench = Bench(served, home, options.requests)
            for kind in ("npy", "parquet"):
                warm = bench.fresh()
                bench.ours(kind, warm)
                sides: dict[str, Callable[[], float]] = {
                    "cold, no cache": partial(bench.ours, kind, None),
                    "cold, filling the cache": partial(bench.filling, kind),
                    "warm cache": partial(bench.ours, kind, warm),
                    "bare obstore": partial(bench.bare, kind),
                    "loader, local files": partial(bench.local, kind),
                }
                if kind == "parquet":
                    sides["pyarrow dataset on S3, in order"] = bench.arrow
                found = interleaved(sides, options.repeats)
                pairs: list[tuple[str, str, float | None]] = [
                    (name, "bare obstore", COLD if kind == "npy" else None)
                    for name in ("cold, no cache", "cold, filling the cache")
                ]
                pairs += [("warm cache", "loader, local files", None)]
                if kind == "parquet":
                    pairs.append(("cold, no cache", "pyarrow dataset on S3, in order", None))
                for ours, theirs, wanted in pairs:
                    ratio = found[ours] / found[theirs]
                    said = "" if wanted is None else f"{wanted:.2f} {'reached' if ratio >= wanted else 'missed'}"
                    lines.append(
                        f"| {kind} | {ours} | {found[ours]:,.0f} | {theirs} | {found[theirs]:,.0f} | {ratio:.2f} "
                        f"| {said} |"
                    )
    print("\n".join(lines))
    print(
        f"\n{options.megabytes} MB in {SHARDS} objects, {LATENCY_S * 1e3:.0f} ms a request, {options.requests} at once"
        f", shuffled but for pyarrow; {os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}"
    )


if __name__ == "__main__":
    main()
