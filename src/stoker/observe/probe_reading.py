"""Which readings of the user's data set are worth their time: with one worker, in a second process, with more."""

import io
import multiprocessing
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from stoker.observe import probe_bench
from stoker.observe.probe_ahead import wait_until_idle
from stoker.observe.probe_bench import Orders, Plan
from stoker.observe.recorder import Recorder

BENCH_S = 5.0
"""What one reading of the data set may take."""
IDLE_S = 2.0
MANY = 2
"""Times the cores: workers beyond that are not started a second time beside the user's own."""
LOOKS = ("text", "profile")
"""What can be seen of batches that come only once."""
OWN_THREADS = 4
"""Threads of a worker that torch and we give it: its own, the queue's, ours."""


class Readings:
    """The benches of one process."""

    def __init__(self, torch: Any, recorder: Recorder) -> None:
        self._torch, self._recorder = torch, recorder
        self._known: Plan | None = None
        self._size: int | None = None

    def can(self, loader: Any, name: str) -> bool:
        """Some cannot be asked: what an iterator gives is gone, and workers that are not forked start slowly."""
        if name == "rate":  # of a stream too: workers have copies of it, and what they take of one is not missed
            known = self._known is not None or self._streams(loader)
            return known and loader.num_workers > 0 and not starts_anew(loader)
        if self._streams(loader):
            return not starts_anew(loader)
        return loader.num_workers > 0 or not any(map(_is_used_up, getattr(loader.dataset, "__dict__", {}).values()))

    def _streams(self, loader: Any) -> bool:
        return isinstance(loader.dataset, self._torch.utils.data.IterableDataset)

    def run(
        self, name: str, iterator: Any, loader: Any, orders: Orders, make_s: float, ahead: Callable[[int], int]
    ) -> None:
        """One of them. `make_s` is what a batch takes to make, at most; `ahead` takes so many before the loop asks."""
        wait_until_idle(iterator, IDLE_S)
        if name == "bench" and self._streams(loader):
            self._look(loader, ahead)
        elif name == "bench":
            self._bench(loader, orders, make_s)
        else:
            self._rates(loader, iterator, make_s)

    def _bench(self, loader: Any, orders: Orders, make_s: float) -> None:
        if make_s > BENCH_S / 4:  # a batch takes too long: fewer samples of it
            full = len(orders.recent[-1]) if orders.recent and isinstance(orders.recent[-1], list) else 1
            self._size = max(int(full * BENCH_S / 8 / make_s), 1)
            make_s *= self._size / full
        count = min(max(int(BENCH_S / 5 / max(make_s, 1e-4)), 1), probe_bench.MOST_BATCHES)
        here, spawns = loader.num_workers == 0, starts_anew(loader)
        known = self._known = Plan(loader, orders, count, self._size)
        self._read(loader, "one", known.full(), workers=0 if here else 1, until_s=BENCH_S)
        if not here and not spawns:
            self._read(loader, "second", known.second(), workers=1, until_s=BENCH_S / 2)

    def _look(self, loader: Any, ahead: Callable[[int], int]) -> None:
        """A stream gives no sample twice: a worker has a copy of it; without one the loop gets what was looked at."""
        if loader.num_workers:
            self._read(loader, "one", ([None] * 3, ["warm", *LOOKS]), workers=1, until_s=BENCH_S)
        else:
            probe_bench.look(self._recorder, list(LOOKS), ahead)

    def _rates(self, loader: Any, iterator: Any, make_s: float) -> None:
        """Throughput in turns: another number of workers, or one thread in each, and as it is in between."""
        cores, workers = len(os.sched_getaffinity(0)), loader.num_workers
        variants: list[tuple[str, int, int | None]] = [("cores", max(cores, 2), None)] if workers != cores else []
        if _extra_threads(iterator) and workers * 2 > cores:
            variants.append(("threads", workers, 1))
        for name, count, threads in variants:
            until_s = BENCH_S / 3 / len(variants)
            turns = [(name, count, threads), ("as is", workers, None), (name, count, threads)]
            if workers > MANY * cores:  # starting them takes longer than reading; loader-only says how fast they are
                del turns[1]
            for label, many, limit in turns:
                batches = min(max(int(until_s / max(make_s / min(many, cores), 1e-4)), 4 * many), 200)
                plan = self._known.rate(batches) if self._known is not None else ([None] * batches, ["rate"] * batches)
                self._read(loader, label, plan, workers=many, threads=limit, until_s=until_s)

    def _read(self, loader: Any, name: str, plan: tuple[list[Any], list[str]], **how: Any) -> None:
        probe_bench.run(self._torch, loader, name, plan, self._recorder, **how)


def _is_used_up(value: Any) -> bool:
    """True for an iterator: what is taken from one that a data set holds, the script would miss."""
    return hasattr(value, "__next__") and not isinstance(value, io.IOBase)


def starts_anew(loader: Any) -> bool:
    """True if workers are not forked: then each one imports everything again."""
    context = loader.multiprocessing_context
    if context is None:
        return loader.num_workers > 0 and multiprocessing.get_start_method(allow_none=True) not in {None, "fork"}
    return bool(loader.num_workers > 0 and context.get_start_method() != "fork")


def _extra_threads(iterator: Any) -> bool:
    """True if a worker has more threads than torch and we give it."""
    for worker in getattr(iterator, "_workers", []):
        with suppress(OSError):
            if sum(1 for _ in Path(f"/proc/{worker.pid}/task").iterdir()) > OWN_THREADS:
                return True
    return False
