"""The user's data set, read by a loader of our own: fresh, neighbouring, again, by one worker and by several.

The clone has the user's data set, collate function, worker start and start method; only order and number of workers
are ours. Its workers are ended, and nothing of it is left, when `run` returns.
"""

import random
from _thread import get_ident
from collections import deque
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

from stoker.observe import probe_copies, probe_making
from stoker.observe.probe_ahead import dismiss
from stoker.observe.probe_counts import COUNTS
from stoker.observe.recorder import Recorder, clock
from stoker.records.codec import encode
from stoker.records.probes import Bench

NEEDED = {"warm", "fresh", "sequential", "text"}
"""Labels after which a reading goes on, though its time is over: without the next ones nothing could be said."""
LONGEST_BATCH_S = 20.0
"""A clone whose next batch takes longer is given up."""
MOST_BATCHES = 5
"""Batches of each label."""
FEW = 4
"""Samples of the batch that is made twice, call by call."""
RECENT = 64
RUN, LEAST_RUN = 8, 16
"""Where batches are cut short because they take long: neighbours come in runs so many times as long, and at least."""


class Orders:
    """The last batches of indices that the user's own sampler gave."""

    def __init__(self) -> None:
        self.recent: deque[Any] = deque(maxlen=RECENT)

    def in_sequence(self) -> float | None:
        """The share of neighbours in a batch that follow each other; None if indices are no numbers."""
        pairs = follow = 0
        for index in self.recent:
            if not (isinstance(index, list) and len(index) > 1 and all(isinstance(i, int) for i in index[:2])):
                continue
            pairs += len(index) - 1
            follow += sum(1 for a, b in pairwise(index) if b - a == 1)
        if not pairs:
            single = [i for i in self.recent if isinstance(i, int)]
            pairs, follow = len(single) - 1, sum(1 for a, b in pairwise(single) if b - a == 1)
        return follow / pairs if pairs > 0 else None


class Plan:
    """Which indices are read, under which labels."""

    def __init__(self, loader: Any, orders: Orders, count: int, size: int | None) -> None:
        self._orders = orders
        self._count = count
        self._draw = random.Random(7)  # noqa: S311  not for secrets; the user's own generators stay as they are
        self._length = _length(loader)
        self._cursor = self._draw.randrange(self._length) if self._length else 0
        self._batched = any(isinstance(index, list) for index in orders.recent)
        self._size = size
        self.fresh = [self._fresh() for _ in range(count)]
        in_order = (orders.in_sequence() or 0.0) > 0.5  # noqa: PLR2004  then fresh ones are neighbours already
        self.sequential = self._neighbours() if self._length and not in_order else []

    def full(self) -> tuple[list[Any], list[str]]:
        """Everything once, what tells most first: warm, fresh and sequential in turns, text, again and the rest."""
        batches, labels = [self._fresh()], ["warm"]
        for i, fresh in enumerate(self.fresh):
            batches.append(fresh)
            labels.append("fresh")
            if i < len(self.sequential):
                batches.append(self.sequential[i])
                labels.append("sequential")
        few = self.fresh[0][:FEW] if isinstance(self.fresh[0], list) else self.fresh[0]
        batches += [self._fresh(), *self.fresh, few, self._fresh(), self._fresh()]
        labels += ["text", *["again"] * len(self.fresh), "repeats", "profile", "cold"]
        return batches, labels

    def second(self) -> tuple[list[Any], list[str]]:
        """The fresh ones once more, in a process that knows nothing of the first time."""
        return [self._fresh(), *self.fresh], ["warm", *(["second"] * len(self.fresh))]

    def rate(self, batches: int) -> tuple[list[Any], list[str]]:
        """As the user's sampler orders, for throughput only."""
        return [self._fresh() for _ in range(batches)], ["rate"] * batches

    def _fresh(self) -> Any:
        size = self._size or self._batch_size()
        if self._length:
            in_sequence = self._orders.in_sequence()
            if in_sequence is not None and in_sequence > 0.5:  # noqa: PLR2004  the user reads in order, so do we
                picked = [(self._cursor + i) % self._length for i in range(size)]
                self._cursor += size
            else:
                recent = self._recent_kind()
                picked = recent or [self._draw.randrange(self._length) for _ in range(size)]
            return picked[:size] if self._batched else picked[0]
        index = self._draw.choice(list(self._orders.recent)) if self._orders.recent else 0
        return list(index)[:size] if self._batched and isinstance(index, list) else index

    def _recent_kind(self) -> list[int] | None:
        """A sampler that keeps to a neighbourhood (a file, a bucket) is followed: its own batch, moved."""
        lists = [index for index in self._orders.recent if isinstance(index, list) and len(index) > 3]  # noqa: PLR2004
        if not lists or not self._length or not all(isinstance(i, int) for i in lists[0]):
            return None
        spread = sorted(max(index) - min(index) for index in lists)[len(lists) // 2]
        if spread > self._length / 3:
            return None
        return list(self._draw.choice(lists))

    def _batch_size(self) -> int:
        sizes = [len(index) for index in self._orders.recent if isinstance(index, list)]
        return sizes[-1] if sizes else 1

    def _neighbours(self) -> list[Any]:
        full = self._batch_size()
        size = min(
            full, max(RUN * (self._size or full), LEAST_RUN)
        )  # two neighbours could show a factor of two at most
        start = self._draw.randrange(self._length or 1)
        found = []
        for i in range(self._count):
            picked = [(start + i * size + j) % (self._length or 1) for j in range(size)]
            found.append(picked if self._batched else picked[0])
        return found


def _length(loader: Any) -> int | None:
    try:
        return len(loader.dataset) or None
    except (TypeError, NotImplementedError):
        return None


class _Fixed:
    """A sampler that gives what it was given."""

    def __init__(self, batches: list[Any]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batches)

    def __len__(self) -> int:
        return len(self._batches)


def run(
    torch: Any,
    loader: Any,
    name: str,
    plan: tuple[list[Any], list[str]],
    recorder: Recorder,
    *,
    workers: int,
    threads: int | None = None,
    until_s: float,
) -> None:
    """Read the plan's batches and note what came of it; never raises."""
    batches, labels = plan
    start = clock()
    pids: tuple[int, ...] = ()
    done, seconds, trouble = 0, None, None
    try:
        if workers == 0:
            before, recorder.home[0] = recorder.home[0], get_ident()  # so that these batches leave rows
            try:
                done = _here(torch, loader, batches, labels, start + int(until_s * 1e9))
            finally:
                recorder.home[0] = before
        else:
            pids, done, seconds = _there(torch, loader, batches, labels, workers, threads, until_s)
    except Exception as error:  # noqa: BLE001  a data set may do anything; the run must go on
        trouble = repr(error)[:200]
    bench = Bench(name, workers, pids, tuple(labels), start, clock(), done, seconds, trouble)
    recorder.note("bench", **encode(bench))


def look(recorder: Recorder, labels: list[str], ahead: Callable[[int], int]) -> None:
    """Batches that `ahead` takes on this thread, made as their labels say."""
    start = clock()
    before, recorder.home[0] = recorder.home[0], get_ident()  # so that these batches leave rows
    probe_making.PLAN[:] = labels
    try:
        done = ahead(len(labels))
    finally:
        probe_making.PLAN.clear()
        recorder.home[0] = before
    recorder.note("bench", **encode(Bench("one", 0, (), tuple(labels), start, clock(), done, None, None)))


def _here(torch: Any, loader: Any, batches: list[Any], labels: list[str], deadline_ns: int) -> int:
    """On this thread, as the user's loader does; random numbers and counts are put back."""
    kind = torch.utils.data.dataloader._DatasetKind  # noqa: SLF001
    fetcher = kind.create_fetcher(
        loader._dataset_kind,  # noqa: SLF001
        loader.dataset,
        loader._auto_collation,  # noqa: SLF001
        loader.collate_fn,
        False,
    )
    states = _random_states(torch)
    own = probe_copies.Own(loader.dataset)
    COUNTS.start()
    done = 0
    try:
        for index, label in zip(batches, labels, strict=True):
            probe_making.PLAN[:] = [label]
            fetcher.fetch(index)
            done += 1
            if clock() > deadline_ns and label not in NEEDED:
                break
    finally:
        probe_making.PLAN.clear()
        COUNTS.stop()
        _restore_random(torch, states)
        own.restore()
    return done


def _random_states(torch: Any) -> tuple[Any, ...]:
    import sys

    numpy = sys.modules.get("numpy")
    return random.getstate(), torch.get_rng_state(), numpy.random.get_state() if numpy else None


def _restore_random(torch: Any, states: tuple[Any, ...]) -> None:
    import sys

    random.setstate(states[0])
    torch.set_rng_state(states[1])
    if states[2] is not None:
        sys.modules["numpy"].random.set_state(states[2])


def _there(
    torch: Any,
    loader: Any,
    batches: list[Any],
    labels: list[str],
    workers: int,
    threads: int | None,
    until_s: float,
) -> tuple[tuple[int, ...], int, float | None]:
    """In workers of our own."""
    clone = torch.utils.data.DataLoader(
        loader.dataset,
        **_order(torch, loader, batches),
        num_workers=workers,
        prefetch_factor=2,
        collate_fn=loader.collate_fn,
        worker_init_fn=probe_making.Start(
            labels if workers == 1 else ["rate"] * len(labels), threads, loader.worker_init_fn
        ),
        multiprocessing_context=loader.multiprocessing_context,
        timeout=LONGEST_BATCH_S,
        generator=torch.Generator().manual_seed(0),
    )
    iterator = iter(clone)
    pids = tuple(worker.pid for worker in iterator._workers)  # noqa: SLF001
    skip = workers * 2  # those that were made while the workers started
    done = first_ns = last_ns = deadline_ns = 0
    try:
        for _ in iterator:
            done += 1
            last_ns = clock()
            deadline_ns = deadline_ns or last_ns + int(until_s * 1e9)  # starting workers is not what is measured
            if done == skip:
                first_ns = last_ns
            if done == len(batches):  # a stream has more
                break
            if last_ns > deadline_ns and (done >= 2 * skip or last_ns > deadline_ns + int(until_s * 1e9)):
                break
    finally:
        dismiss(iterator)
    counted = done - skip
    return pids, done, (last_ns - first_ns) / 1e9 / counted if counted > 1 and first_ns else None


def _order(torch: Any, loader: Any, batches: list[Any]) -> dict[str, Any]:
    """How the clone is told what to read; a stream decides for itself."""
    if isinstance(loader.dataset, torch.utils.data.IterableDataset):
        return {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    if loader.batch_sampler is not None:
        return {"batch_sampler": _Fixed(batches)}
    return {"batch_size": None, "sampler": _Fixed(batches)}
