"""The loader against limits and peers, side by side: python benchmarks/loader.py [records parquet dataset …].

Contenders take turns, round after round; each figure is the median over rounds of a ratio inside a round. Prints a
table and writes it as JSON (--json).
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import loader_data
import numpy as np
import psutil
import pyarrow.parquet as pq
import torch
from rich.console import Console
from rich.table import Table
from torch.utils.data import DataLoader, Dataset

import stoker

BATCH = 750
SKIP = 80
"""Batches that may lie ready when a measurement starts; they are taken before."""

Row = dict[str, Any]


def rates(rounds: int, contenders: dict[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Every contender once a round, in turn, and in the other direction in every second round."""
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds):
        for name, run in list(contenders.items())[:: -1 if number % 2 else 1]:
            found[name].append(run())
            print(f"  round {number + 1}/{rounds}  {name}: {found[name][-1]:,.0f} samples/s", file=sys.stderr)
    return found


def row(name: str, target: str, ratios: list[float], *, least: float | None = None, most: float | None = None) -> Row:
    value = statistics.median(ratios)
    met = (least is None or value >= least) and (most is None or value <= most)
    return {"figure": name, "target": target, "value": value, "low": min(ratios), "high": max(ratios), "met": met}


def against(found: dict[str, list[float]], one: str, other: str) -> list[float]:
    return [a / b for a, b in zip(found[one], found[other], strict=True)]


# ---- records ---------------------------------------------------------------------------------------------


class Records(Dataset[Any]):
    """The case's own dataset: one mapped read per sample."""

    def __init__(self, folder: Path) -> None:
        self.shards = [np.load(path, mmap_mode="r") for path in sorted(folder.glob("*.npy"))]
        self.starts = np.cumsum([0, *(len(shard) for shard in self.shards)])

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __getitem__(self, index: int) -> dict[str, Any]:
        shard = int(np.searchsorted(self.starts, index, side="right")) - 1
        record = self.shards[shard][index - self.starts[shard]]
        return {name: np.array(record[name]) for name in loader_data.RECORD.names or ()}


class Batched(Records):
    """The same with a vectorised fetch: one array of records per batch."""

    def __getitems__(self, indices: list[int]) -> np.ndarray:
        index = np.asarray(indices)
        shard = np.searchsorted(self.starts, index, side="right") - 1
        out = np.empty(len(index), loader_data.RECORD)
        for one in np.unique(shard):
            mine = shard == one
            out[mine] = self.shards[one][index[mine] - self.starts[one]]
        return out


def _same(batch: Any) -> Any:
    return batch


def drain(batches: Iterator[Any], seconds: float, warm: int = 2) -> float:
    """Samples a second, after a warm-up."""
    for _ in range(warm):
        next(batches)
    begin, count = time.perf_counter(), 0
    for _ in batches:
        count += BATCH
        if time.perf_counter() - begin > seconds:
            break
    return count / (time.perf_counter() - begin)


def mapped(folder: Path) -> list[np.ndarray]:
    """All shards as rows of bytes, every page of them touched."""
    rows = [np.asarray(np.load(path, mmap_mode="r")).view("V3097") for path in sorted(folder.glob("*.npy"))]
    for shard in rows:
        shard.view(np.uint8)[::4096].sum()
    return rows


def take_limit(rows: list[np.ndarray], seconds: float = 1.5) -> float:
    """Two threads of `np.take` of whole rows, over all shards, into reused buffers: no fields, no order, no batches."""
    counts = [0, 0]

    def work(number: int) -> None:
        random = np.random.default_rng(number)
        picks = [random.permutation(len(shard))[: len(shard) // BATCH * BATCH].reshape(-1, BATCH) for shard in rows]
        buffers = itertools.cycle([np.empty(BATCH, "V3097") for _ in range(4)])
        stop = time.perf_counter() + seconds
        for turn in itertools.count():
            shard = turn % len(rows)
            np.take(rows[shard], picks[shard][turn // len(rows) % len(picks[shard])], out=next(buffers), mode="clip")
            counts[number] += BATCH
            if time.perf_counter() > stop:
                return

    begin = time.perf_counter()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - begin)


def records(folder: Path, rounds: int) -> list[Row]:
    data = loader_data.records(folder, 8)
    rows = mapped(data)
    loader = stoker.Loader(stoker.open(data), BATCH, shuffle=True)
    for _ in loader:
        pass

    def ours() -> float:
        return drain(iter(loader), 60, warm=SKIP)

    def items(workers: int, prefetch: int | None) -> Callable[[], float]:
        def run() -> float:
            torch_loader = DataLoader(Records(data), BATCH, shuffle=True, num_workers=workers, prefetch_factor=prefetch)
            return drain(iter(torch_loader), 0.7, warm=max(1, workers))

        return run

    def batched() -> float:
        return drain(iter(DataLoader(Batched(data), BATCH, shuffle=True, collate_fn=_same)), 1.5)

    contenders = {"np.take in 2 threads": lambda: take_limit(rows), "stoker.Loader": ours, "__getitems__": batched}
    found = rates(rounds, contenders)
    sweep = {"items, 0 workers": items(0, None)}
    sweep |= {f"items, {w} workers, prefetch {p}": items(w, p) for w in (1, 2, 4) for p in (1, 2, 4)}
    singles = rates(max(1, rounds // 3), sweep)
    best = max(singles, key=lambda name: statistics.median(singles[name]))
    found["best per item"] = [statistics.median(singles[best])] * rounds
    ratio = loader.stats().pair_ratio
    loader.close()
    return [
        row("records: samples/s", "", found["stoker.Loader"]),
        row(
            "records: ÷ np.take in 2 threads",
            "≥ 0.65",
            against(found, "stoker.Loader", "np.take in 2 threads"),
            least=0.65,
        ),
        row(
            "records: ÷ DataLoader, vectorised __getitems__",
            "≥ 2",
            against(found, "stoker.Loader", "__getitems__"),
            least=2,
        ),
        row(f"records: ÷ DataLoader, {best}", "≥ 20", against(found, "stoker.Loader", "best per item"), least=20),
        row("records: pair ratio", "≤ 2", [ratio or 0], most=2),
    ]


# ---- Parquet ---------------------------------------------------------------------------------------------


def bare(files: list[Path], threads: int = 2, *, ahead: bool = True) -> float:
    """`ParquetFile.read_row_group` of everything, in file order, thrown away at once."""
    groups = iter([(path, group) for path in files for group in range(pq.ParquetFile(path).num_row_groups)])
    lock, rows = threading.Lock(), [0] * threads

    def work(number: int) -> None:
        opened: dict[Path, pq.ParquetFile] = {}
        while True:
            with lock:
                at = next(groups, None)
            if at is None:
                return
            file = opened.get(at[0]) or opened.setdefault(at[0], pq.ParquetFile(at[0], pre_buffer=ahead))
            rows[number] += file.read_row_group(at[1], use_threads=False).num_rows

    begin = time.perf_counter()
    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for thread in workers:
        thread.start()
    for thread in workers:
        thread.join()
    return sum(rows) / (time.perf_counter() - begin)


def parquet(folder: Path, rounds: int) -> list[Row]:
    data = loader_data.events(folder, 32)
    source = stoker.open(data)
    ratios: list[tuple[float, float]] = []
    # On a machine that others use too, CPU time says more than wall time.
    cpu: dict[str, list[float]] = {"bare": [], "in order": [], "shuffled": []}

    def decode() -> float:
        begin = time.process_time()
        rate = bare(files)
        cpu["bare"].append(len(source) / (time.process_time() - begin))
        return rate

    def ours(shuffle: bool) -> Callable[[], float]:
        def run() -> float:
            # 512 MB hold a part of the data only, so that every epoch decodes every row group.
            with stoker.Loader(source, 256, shuffle, memory="512MB", threads=2) as loader:
                for _ in loader:  # the first epoch finds its buffers; the second one is like all that follow
                    pass
                begin, begin_cpu, count = time.perf_counter(), time.process_time(), 0
                for batch in loader:
                    count += len(batch["event_id"])
                took = time.perf_counter() - begin
                cpu["shuffled" if shuffle else "in order"].append(count / (time.process_time() - begin_cpu))
                stats = loader.stats()
            if shuffle:
                ratios.append((stats.pair_ratio or 0, stats.file_pair_ratio or 0))
            return count / took

        return run

    files = sorted(data.glob("*.parquet"))
    contenders = {"bare": decode, "not ahead": lambda: bare(files, ahead=False)}
    found = rates(rounds, contenders | {"in order": ours(False), "shuffled": ours(True)})
    return [
        row("parquet: events/s shuffled", "", found["shuffled"]),
        row("parquet: in order ÷ bare decoding in 2 threads", "≥ 0.75", against(found, "in order", "bare"), least=0.75),
        row("parquet: shuffled ÷ in order", "≥ 0.9", against(found, "shuffled", "in order"), least=0.9),
        row("parquet: bare without reading ahead ÷ bare", "", against(found, "not ahead", "bare")),
        row("parquet: in order ÷ bare without reading ahead", "", against(found, "in order", "not ahead")),
        row("parquet: in order ÷ bare, in CPU time", "", against(cpu, "in order", "bare")),
        row("parquet: shuffled ÷ in order, in CPU time", "", against(cpu, "shuffled", "in order")),
        row("parquet: same-file pair ratio", "≤ 2", [file for _, file in ratios], most=2),
        row("parquet: same-row-group pair ratio", "", [block for block, _ in ratios]),
    ]


# ---- any Dataset -----------------------------------------------------------------------------------------


class Trivial(Dataset[Any]):
    """Nothing to do: what is measured is the loader."""

    def __init__(self, rows: int) -> None:
        self.data = torch.arange(rows)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.data[index]


def dataset(_: Path, rounds: int) -> list[Row]:
    table = []
    for workers in (0, 2):
        rows = 64_000 if workers == 0 else 256_000
        how: dict[str, Any] = {"batch_size": 64, "shuffle": True, "num_workers": workers}
        if workers:
            how["persistent_workers"] = True
        torch_loader = DataLoader(Trivial(rows), **how)
        ours = stoker.Loader(Trivial(rows), **how)

        def epoch(loader: Any, rows: int = rows) -> Callable[[], float]:
            def run() -> float:
                begin = time.perf_counter()
                for _ in loader:
                    pass
                return rows / (time.perf_counter() - begin)

            run()
            return run

        found = rates(
            8 * rounds if workers == 0 else 2 * rounds,
            {"DataLoader": epoch(torch_loader), "stoker.Loader": epoch(ours)},
        )
        ours.close()
        table.append(
            row(
                f"dataset: ÷ DataLoader, {workers} workers",
                "≥ 1",
                against(found, "stoker.Loader", "DataLoader"),
                least=1,
            )
        )
    return table


# ---- memory, epoch boundary, scale -----------------------------------------------------------------------

_MEMORY = """
import sys, threading, time, psutil, stoker
loader = stoker.Loader(stoker.open(sys.argv[1]), int(sys.argv[2]), shuffle=True, memory="256MiB", threads=2)
process, peak, stop = psutil.Process(), [0], threading.Event()
before = process.memory_info().rss
def watch():
    while not stop.wait(0.002):
        peak[0] = max(peak[0], process.memory_info().rss)
watcher = threading.Thread(target=watch)
watcher.start()
for batch in loader: pass
stop.set()
watcher.join()
loader.close()
print((peak[0] - before) / 2**28)
"""


def memory(folder: Path, rounds: int) -> list[Row]:
    table = []
    sets = {
        "records, 2.0 GB": (loader_data.records(folder, 11), 750),
        "events, 0.8 GB": (loader_data.events(folder, 32), 256),
    }
    for name, (data, batch) in sets.items():
        shares = [float(_child(_MEMORY, data, batch)) for _ in range(max(1, rounds // 3))]
        table.append(row(f"memory: peak ÷ 256 MiB budget, {name}", "≤ 1.1", shares, most=1.1))
    return table


def _child(code: str, *arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, check=True, timeout=600
    )
    return done.stdout.strip().splitlines()[-1]


def boundary(folder: Path, rounds: int) -> list[Row]:
    """What the first batch of an epoch costs a loop of 5 ms a step, against the other batches."""
    step_s = 0.005
    table = []
    for name, data, batch in (
        ("records", loader_data.records(folder, 8), 750),
        ("events", loader_data.events(folder, 4), 512),
    ):
        with stoker.Loader(stoker.open(data), batch, shuffle=True) as loader:
            firsts: list[float] = []
            others: list[float] = []
            for epoch in range(rounds + 1):
                last = time.perf_counter()
                for number, _ in enumerate(loader):
                    wait = time.perf_counter() - last
                    if epoch:
                        (others if number else firsts).append(wait)
                    time.sleep(step_s)
                    last = time.perf_counter()
        usual = statistics.median(others)
        extra = [max(0.0, first - usual) / step_s for first in firsts]
        table.append(row(f"epoch boundary: extra steps, {name}", "< 1", extra, most=1))
    return table


_FIRST = """
import sys, time, json, stoker, torch
begin = time.perf_counter()
loader = stoker.Loader(stoker.open(sys.argv[1]), 4096, shuffle=True)
next(iter(loader))
print(json.dumps([time.perf_counter() - begin, len(json.dumps(loader.state_dict()))]))
"""


def scale(folder: Path, rounds: int) -> list[Row]:
    rows = 6_000_000
    paths = {n: loader_data.sparse(folder / "sparse" / f"{n}.npy", rows * n) for n in (1, 10)}

    def ours(path: Path) -> Callable[[], float]:
        loader = stoker.Loader(stoker.open(path), 4096, shuffle=True)
        for _ in loader:  # pages of a sparse file come into being when they are read
            pass

        def run() -> float:
            batches = iter(loader)
            begin, count = time.perf_counter(), 0
            for batch in itertools.islice(batches, 1400):
                count += len(batch["data"])
            return count / (time.perf_counter() - begin)

        return run

    found = rates(rounds, {f"{n * rows:,} rows": ours(path) for n, path in paths.items()})
    one, ten = found.values()
    billion = loader_data.sparse(folder / "sparse" / "billion.npy", 1_000_000_000)
    firsts = [json.loads(_child(_FIRST, billion)) for _ in range(rounds)]
    small = json.loads(_child(_FIRST, paths[1]))
    return [
        row("scale: rate at 10 times the rows", "≥ 0.9", [b / a for a, b in zip(one, ten, strict=True)], least=0.9),
        row("scale: first batch at 1,000,000,000 rows, s", "< 1", [first for first, _ in firsts], most=1),
        row("scale: state at 1,000,000,000 rows, bytes", "kilobytes", [float(size) for _, size in firsts], most=4096),
        row("scale: state at 6,000,000 rows, bytes", "", [float(small[1])]),
    ]


# ---- the table -------------------------------------------------------------------------------------------

BENCHMARKS: dict[str, Callable[[Path, int], list[Row]]] = {
    "records": records,
    "parquet": parquet,
    "dataset": dataset,
    "memory": memory,
    "boundary": boundary,
    "scale": scale,
}


def show(table: list[Row]) -> None:
    shown = Table("figure", "target", "measured", "rounds", "met")
    for one in table:
        figures = [f"{one[key]:,.0f}" if one[key] >= 1000 else f"{one[key]:.2f}" for key in ("value", "low", "high")]
        met = "" if not one["target"] else "yes" if one["met"] else "no"
        shown.add_row(one["figure"], one["target"], figures[0], f"{figures[1]} to {figures[2]}", met)
    Console(width=130).print(shown)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of {', '.join(BENCHMARKS)}; default: all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--data", type=Path, help="where data sets are made and kept (default: made anew, removed)")
    given = parser.parse_args()
    warnings.filterwarnings("ignore", "(?s)This DataLoader will create 4 worker processes")
    unknown = set(given.names) - set(BENCHMARKS)
    if unknown:
        parser.error(f"no benchmark is called {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    table: list[Row] = []
    with tempfile.TemporaryDirectory() as scratch:
        for name in given.names or BENCHMARKS:
            print(name, file=sys.stderr)
            table += BENCHMARKS[name](given.data or Path(scratch), given.rounds)
            if given.json:
                figures = {"cores": os.cpu_count(), "load": psutil.getloadavg()[0], "figures": table}
                given.json.write_text(json.dumps(figures, indent=1))
    show(table)


if __name__ == "__main__":
    main()
