"""How fast a source can be loaded on this machine, in which order, cold and warm, and how well it is shuffled."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from stoker.errors import UsageError
from stoker.loader.engine import Shuffle
from stoker.loader.front import Loader
from stoker.loader.source import pagecache
from stoker.loader.source.interface import Field, Source

Orders = Literal["in order", "shuffled", "full random"]
Cache = Literal["cold", "warm", "store"]
"""Whether files lie in memory; a remote store is taken as it comes."""
_LABELS = ("label", "labels", "target", "targets", "class", "y")
_COPY_BYTES = 64 << 20
_READ_BYTES = 8 << 20
_WARM_UP = 5
"""Reading everything into memory may take so many times what a measurement may."""
_COLD_SHARE = 0.05
"""A file counts as cold if less of it is in memory."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure."""

    batch_size: int
    shuffle: bool
    memory: str
    threads: int
    seconds: float
    label: str | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """One measurement. `rows_per_s` is None if it could not be made."""

    order: Orders
    cache: "Cache"
    rows_per_s: float | None
    rows: int
    share_of_copy: float | None
    """Of the rate at which the same bytes can be copied. Near 1: nothing is left to gain."""
    first_batch_s: float | None
    pair_ratio: float | None = None
    file_pair_ratio: float | None = None
    label_entropy_bits: float | None = None
    """Mean entropy of the label inside a batch."""
    window_blocks: int | None = None


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What `stoker bench` found."""

    kind: str
    files: int
    rows: int
    row_bytes: float
    fields: tuple[str, ...]
    batch_size: int
    threads: int
    copy_rows_per_s: float
    """The limit: copying as many bytes as a row has, with the same threads."""
    runs: tuple[Run, ...]
    label: str | None = None
    label_entropy_uniform_bits: float | None = None
    """The entropy of the label in random batches of the rows that were read: what a perfect shuffle gives."""


@dataclass(slots=True)
class _Labels:
    """Labels of the batches of a run."""

    name: str | None
    batches: list[Any] = field(default_factory=list)

    def see(self, batch: dict[str, Any]) -> None:
        if self.name is not None:
            self.batches.append(batch[self.name].numpy().copy())

    def entropy(self) -> float | None:
        return float(np.mean([entropy_bits(batch) for batch in self.batches])) if self.batches else None


def entropy_bits(labels: Any) -> float:
    """The entropy of the values in a batch."""
    counts = np.unique(labels, return_counts=True)[1]
    shares = counts / counts.sum()
    return float(-(shares * np.log2(shares)).sum())


def measure(source: Source, plan: Plan, said: Callable[[str], None]) -> Ceilings:
    """All measurements, one after the other; `said` is told what is under way."""
    said("copying in memory")
    copy = copy_rate(source.row_bytes, plan.threads)
    label = find_label(source.fields, plan.label)
    runs: list[Run] = []
    seen = _Labels(label)
    for order, shuffle in _orders(source, plan.shuffle):
        rows = None
        states: tuple[Cache, ...] = ("store",) if "://" in source.locate(0)[0] else ("cold", "warm")
        for cache in states:
            said(f"{order}, {cache}")
            if cache == "cold" and not make_cold(source):
                runs.append(Run(order, cache, None, 0, None, None))
                continue
            if cache == "warm" and warm_up(source, _WARM_UP * plan.seconds):
                rows = None
            labels = _Labels(label)
            runs.append(_run(source, plan, order, shuffle, cache, copy, labels, rows))
            rows = runs[-1].rows
            seen.batches += labels.batches
    uniform = _uniform_entropy(seen.batches, plan.batch_size)
    return Ceilings(
        kind=source.kind,
        files=len(source.file_starts()) - 1,
        rows=len(source),
        row_bytes=source.row_bytes,
        fields=tuple(one.name for one in source.fields),
        batch_size=plan.batch_size,
        threads=plan.threads,
        copy_rows_per_s=copy,
        runs=tuple(runs),
        label=label,
        label_entropy_uniform_bits=uniform,
    )


def _orders(source: Source, shuffle: bool) -> Iterator[tuple[Orders, Shuffle]]:
    yield "in order", False
    if shuffle:
        yield "shuffled", True
        if not source.holds_blocks:
            yield "full random", "full"


def _run(
    source: Source,
    plan: Plan,
    order: Orders,
    shuffle: Shuffle,
    cache: Cache,
    copy: float,
    labels: _Labels,
    rows: int | None,
) -> Run:
    """Load for a while: as many rows as the cold run before did, so that a warm one reads what that one read."""
    with Loader(source, plan.batch_size, shuffle, memory=plan.memory, threads=plan.threads) as loader:
        begin, got, first = time.perf_counter(), 0, None
        for batch in loader:
            got += _rows(batch)
            first = time.perf_counter() - begin if first is None else first
            labels.see(batch)
            took = time.perf_counter() - begin
            if took > plan.seconds or (rows is not None and got >= rows):
                break
        stats = loader.stats()
    rate = got / took
    return Run(
        order,
        cache,
        rate,
        got,
        rate / copy,
        first,
        stats.pair_ratio,
        stats.file_pair_ratio,
        labels.entropy(),
        stats.window_blocks,
    )


def _rows(batch: dict[str, Any]) -> int:
    """The rows of a batch, whatever its first field is."""
    value = next(iter(batch.values()))
    return len(value.offsets) - 1 if hasattr(value, "offsets") else len(value)


def copy_rate(row_bytes: float, threads: int, seconds: float = 0.5) -> float:
    """Rows a second, if a row only had to be copied."""
    counts = [0] * threads

    def work(number: int) -> None:
        source, target = (np.ones(_COPY_BYTES // threads, np.uint8) for _ in range(2))
        stop = time.perf_counter() + seconds
        while time.perf_counter() < stop:
            np.copyto(target, source)
            counts[number] += target.nbytes

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    begin = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(counts) / (time.perf_counter() - begin) / row_bytes


def make_cold(source: Source) -> bool:
    """Take a source's files out of memory; False if they stayed."""
    starts = source.file_starts()
    source.leave(starts[:-1], np.diff(starts))
    paths = _files(source)
    for path in paths:
        pagecache.evict(path)
    shares = [pagecache.cached_share(path) for path in paths[:32]]
    return all(share is not None and share < _COLD_SHARE for share in shares)


def _files(source: Source) -> list[str]:
    """What a source reads; some volumes are folders."""
    found = []
    for path in source.paths():
        inside = [str(file) for file in Path(path).rglob("*") if file.is_file()] if Path(path).is_dir() else [path]
        found += inside
    return found


def warm_up(source: Source, seconds: float) -> bool:
    """Read a source's files into memory, for a while; True if all of them are there now."""
    stop = time.perf_counter() + seconds
    for path in _files(source):
        with Path(path).open("rb", buffering=0) as file:
            while file.read(_READ_BYTES):
                if time.perf_counter() > stop:
                    return False
    return True


def find_label(fields: tuple[Field, ...], asked: str | None) -> str | None:
    """The field that holds a class, if there is one."""
    fit = [
        one.name for one in fields if not one.ragged and not one.text and one.shape == () and one.dtype.kind in "iub"
    ]
    if asked is None:
        return next((name for name in fit if name.lower() in _LABELS), None)
    if asked not in fit:
        raise UsageError(f"--label is {asked}; expected a whole-number field: {', '.join(fit) or 'there is none'}")
    return asked


def _uniform_entropy(batches: list[Any], batch_size: int) -> float | None:
    if not batches:
        return None
    labels = np.concatenate(batches)
    random = np.random.default_rng(0)
    draws = [random.choice(labels, min(batch_size, len(labels)), replace=False) for _ in range(32)]
    return float(np.mean([entropy_bits(draw) for draw in draws]))
