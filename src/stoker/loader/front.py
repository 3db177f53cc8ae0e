"""`stoker.Loader`: epochs, state and figures, over an engine that makes the batches."""

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Protocol, Self

import torch
from torch.utils.data import Dataset, IterableDataset

from stoker.errors import ClosedError, ForkedError, LoaderError, NoDataError, OtherSourceError, UsageError
from stoker.loader import budget, check, cores, ranks
from stoker.loader.assemble import RaggedAs
from stoker.loader.dataset import DatasetEngine
from stoker.loader.deliver import FORKED
from stoker.loader.engine import Shuffle, SourceEngine
from stoker.loader.fetch import NOTHING, OnError
from stoker.loader.ranks import Split
from stoker.loader.source.interface import Batch, Source
from stoker.loader.stats import Stats
from stoker.sizes import parse_bytes

STATE_VERSION = 1


class Batchwise(Protocol):
    """Batches in order, epoch after epoch."""

    def at(self) -> int:
        """The epoch of the next batch."""

    def get(self, epoch: int) -> tuple[int, Any] | None:
        """The next batch of an epoch and the global position after it; None once the epoch is over."""

    def close(self) -> None:
        """End threads and processes."""


class Engine(Protocol):
    """What makes batches."""

    @property
    def split(self) -> Split | None:
        """How batches fall to ranks; None where the user's sampler says."""

    def stream(self, epoch: int, position: int) -> Batchwise:
        """Batches from a position on."""

    def count(self) -> int:
        """Batches of an epoch."""

    def is_over(self, position: int) -> bool:
        """True if an epoch ends at this position."""

    def order_state(self) -> dict[str, Any]:
        """What decides the order, besides the seed."""

    def restore_order(self, seed: int, state: dict[str, Any]) -> None:
        """Go on in the order of a saved state."""

    def fingerprint(self) -> dict[str, Any]:
        """What makes the data this data."""

    def stats(self, rows_per_s: float | None) -> Stats:
        """Figures so far."""

    def close(self) -> None:
        """Let go of memory."""


class _Open:
    """What must be closed when a loader goes; apart from it, so that its finalizer can hold this."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.streams: weakref.WeakSet[Batchwise] = weakref.WeakSet()

    def close(self) -> None:
        for stream in list(self.streams):
            stream.close()
        self.engine.close()


class Loader:
    """Batches for a training loop, from what `stoker.open` opened or from any torch Dataset.

        loader = stoker.Loader(stoker.open("shards/*.npy"), batch_size=750, shuffle=True)
        for batch in loader: ...

    Every sample of an epoch comes exactly once over all ranks, in an order that follows from (seed, epoch) alone.
    """

    def __init__(
        self,
        data: "Source | Dataset[Any]",
        batch_size: int | None = 1,
        shuffle: Shuffle | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        seed: int = 0,
        memory: int | str = budget.MEMORY_BYTES,
        window: int | None = None,
        threads: int | None = None,
        map: Callable[[Batch], Any] | None = None,  # noqa: A002  what it is called everywhere
        on_error: OnError = "raise",
        ragged: RaggedAs = "values",
        buckets: bool = False,
        device: str | torch.device | None = None,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        self._given = {name: value for name, value in locals().items() if name != "self"}
        self.dataset = data
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.seed = seed
        check.whole("seed", seed, 0)
        self.rank, self.world_size = ranks.detect(rank, world_size)
        theirs = {
            "sampler": sampler,
            "batch_sampler": batch_sampler,
            "num_workers": num_workers,
            "collate_fn": collate_fn,
            "pin_memory": pin_memory,
            "timeout": timeout,
            "worker_init_fn": worker_init_fn,
            "multiprocessing_context": multiprocessing_context,
            "generator": generator,
            "prefetch_factor": prefetch_factor,
            "persistent_workers": persistent_workers,
            "pin_memory_device": pin_memory_device,
            "in_order": in_order,
        }
        ours: dict[str, Any] = {"window": window, "threads": threads, "map": map, "ragged": ragged, "buckets": buckets}
        self._engine: Engine
        if isinstance(data, Source):
            _refuse("a source that stoker.open opened", theirs, ("sampler", "batch_sampler", "collate_fn"))
            check.whole("batch_size", batch_size, 1)
            assert batch_size is not None
            # Who comes from DataLoader thinks of workers; here they are threads.
            self._engine = SourceEngine(
                data,
                _split(len(data), batch_size, drop_last, self.rank, self.world_size),
                shuffle=False if shuffle is None else shuffle,
                seed=seed,
                memory_bytes=parse_bytes(memory, "memory", least_bytes=1 << 20),
                on_error=on_error,
                device=device,
                **ours | {"threads": threads if threads is not None else num_workers or cores.count()},
            )
        else:
            _check_dataset(data)
            ours["ragged"] = None if ragged == "values" else ragged
            ours["on_error"] = None if on_error == "raise" else on_error
            ours["memory"] = None if memory == budget.MEMORY_BYTES else memory
            _refuse("a torch Dataset", ours, tuple(ours))
            self._engine = self._over_dataset(data, shuffle, theirs, device)
        self._next = (0, 0)
        """The epoch and position at which the next iterator starts."""
        self._at = (0, 0)
        """The epoch and position behind what was delivered."""
        self._resumed = (0, 0)
        """The epoch and position of the state that was loaded; until an iterator starts, `set_epoch` keeps them."""
        self._latest = 0
        """The epoch of the newest iterator."""
        self._parked: Batchwise | None = None
        """A stream that is already making the next epoch's first batches."""
        self._began_s: float | None = None
        self._delivered_s: float | None = None
        self._open = _Open(self._engine)
        self._finalizer = weakref.finalize(self, self._open.close)

    def _over_dataset(
        self,
        data: "Dataset[Any]",
        shuffle: Shuffle | None,
        theirs: dict[str, Any],
        device: str | torch.device | None,
    ) -> DatasetEngine:
        """An engine that orders the dataset itself, unless the user's sampler does, or nobody can."""
        check.one_of("shuffle", shuffle, (None, True, False, "full"))
        _check_batches(self.batch_size, self.drop_last, theirs["batch_sampler"])
        if shuffle == "full":
            shuffle = True
        is_ours = theirs["sampler"] is None and theirs["batch_sampler"] is None
        if isinstance(data, IterableDataset) or not is_ours or not hasattr(data, "__len__"):
            if theirs["batch_sampler"] is None:
                theirs |= {"batch_size": self.batch_size, "drop_last": self.drop_last}
            return DatasetEngine(data, None, shuffle=shuffle, seed=self.seed, arguments=theirs, device=device)
        arguments = {name: value for name, value in theirs.items() if name not in {"sampler", "batch_sampler"}}
        if self.batch_size is None:  # samples as they are, one by one
            arguments["batch_size"] = None
            split = _split(len(data), 1, self.drop_last, self.rank, self.world_size)
        else:
            check.whole("batch_size", self.batch_size, 1)
            split = _split(len(data), self.batch_size, self.drop_last, self.rank, self.world_size)
        return DatasetEngine(data, split, shuffle=shuffle, seed=self.seed, arguments=arguments, device=device)

    def __len__(self) -> int:
        """Batches of an epoch, on this rank."""
        return self._engine.count()

    def __iter__(self) -> Iterator[Any]:
        """A pass over the next epoch, or over the rest of the one that `load_state_dict` stands in."""
        return _Pass(self, *self._start())

    def _start(self) -> tuple[int, Batchwise]:
        self._check_open()
        epoch, position = self._at = self._next
        self._latest = epoch
        self._next = self._resumed = (epoch + 1, 0)
        if self._began_s is None:
            self._began_s = time.perf_counter()
        parked, self._parked = self._parked, None
        if parked is not None and position == 0 and parked.at() == epoch:
            return epoch, parked
        if parked is not None:
            parked.close()
        stream = self._engine.stream(epoch, position)
        self._open.streams.add(stream)
        return epoch, stream

    def _check_open(self) -> None:
        if not self._finalizer.alive:
            raise ClosedError("the loader is closed; make a new one")

    def set_epoch(self, epoch: int) -> None:
        """Let the next iterator deliver this epoch. Without it, epochs count up by themselves.

        Of the epoch in which a state stands that was just loaded, it delivers what was not yet delivered.
        """
        check.whole("epoch", epoch, 0)
        position = self._resumed[1] if epoch == self._resumed[0] else 0
        self._next = self._at = self._resumed = (epoch, position)

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands: behind the last batch that was delivered, whatever has been fetched ahead."""
        epoch, position = self._at
        return {
            "version": STATE_VERSION,
            "epoch": epoch,
            "position": position,
            "seed": self.seed,
            "order": self._engine.order_state(),
            "source": self._engine.fingerprint(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next iterator deliver what was not yet delivered, on any number of ranks."""
        self._check_open()
        _check_state(state, self._engine.fingerprint())
        self._engine.restore_order(state["seed"], state["order"])
        self.seed = state["seed"]
        if self._parked is not None:
            self._parked.close()
            self._parked = None
        self._stand(state["epoch"], state["position"])

    def _stand(self, epoch: int, position: int) -> None:
        """Go on from here; behind an epoch's last batch, with the next epoch."""
        self._resumed = (epoch, position)
        self._next = self._at = (epoch + 1, 0) if self._engine.is_over(position) else (epoch, position)
        if self._engine.split is not None:
            ranks.warn_if_uneven([self._engine.split.after(position)])

    def stats(self) -> Stats:
        """Where time went, how good the shuffle is, what it costs in memory, and what was left out."""
        rate = None
        if self._began_s is not None and self._delivered_s is not None:
            rate = self._engine.stats(None).rows / (self._delivered_s - self._began_s)
        return self._engine.stats(rate)

    def close(self) -> None:
        """End threads and processes, and give back memory. Batches that were delivered stay valid."""
        self._finalizer()

    def __getstate__(self) -> dict[str, Any]:
        """For a process of its own: ranks that were not given are found out there."""
        return {"given": self._given | {"seed": self.seed}, "order": self._engine.order_state(), "at": self._at}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state["given"])  # type: ignore[misc]
        self._engine.restore_order(self.seed, state["order"])
        self._stand(*state["at"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _deliver(self, epoch: int, position: int) -> None:
        self._at = (epoch, position)
        self._delivered_s = time.perf_counter()

    def _finish(self, epoch: int, stream: Batchwise) -> None:
        """An epoch is over; its stream has begun with the next."""
        self._at = self._next if epoch == self._latest else (epoch + 1, 0)
        if self._parked is not None:
            self._parked.close()
        self._parked = stream


class _Pass:
    """One iterator, which several threads may share. Abandoned half-way, it ends its threads when it goes."""

    def __init__(self, loader: Loader, epoch: int, stream: Batchwise) -> None:
        self._loader = loader
        self._epoch = epoch
        self._stream: Batchwise | None = stream
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def __iter__(self) -> "_Pass":
        return self

    def __next__(self) -> Any:
        if self._lock.locked() and self._pid != os.getpid():
            raise ForkedError(FORKED)  # whoever holds it stayed in the parent
        with self._lock:
            return self._take()

    def _take(self) -> Any:
        while self._stream is not None:
            try:
                got = self._stream.get(self._epoch)
            except StopIteration as error:  # only None is the end of an epoch
                self._close()
                raise LoaderError(
                    "a batch could not be made: StopIteration was raised where it means nothing"
                ) from error
            except Exception:
                self._close()
                raise
            if got is None:
                self._loader._finish(self._epoch, self._stream)  # noqa: SLF001
                self._stream = None
                break
            self._loader._deliver(self._epoch, got[0])  # noqa: SLF001
            if got[1] is not NOTHING:
                return got[1]
        raise StopIteration

    def _close(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def __del__(self) -> None:
        self._close()


def _refuse(data: str, arguments: dict[str, Any], names: tuple[str, ...]) -> None:
    for name in names:
        if arguments[name] is not None and arguments[name] is not False:
            raise UsageError(f"{name} does not apply to {data}; leave it out{' and use map=' * (name == 'collate_fn')}")


def _check_dataset(data: Any) -> None:
    if isinstance(data, str | bytes | os.PathLike):
        raise UsageError(f"{data!r} is a path; did you mean stoker.Loader(stoker.open({data!r}), …)?")
    if not (isinstance(data, IterableDataset) or hasattr(data, "__getitem__")):
        raise UsageError(f"data is {data!r}; expected what stoker.open returned, or a torch Dataset")


def _check_batches(batch_size: int | None, drop_last: bool, batch_sampler: Any) -> None:
    if batch_sampler is not None and (batch_size != 1 or drop_last):
        raise UsageError("batch_sampler makes the batches; leave batch_size and drop_last out")
    if batch_size is None and drop_last:
        raise UsageError("batch_size is None, so that there is no last batch; leave drop_last out")


def _split(rows: int, batch_size: int, drop_last: bool, rank: int, world_size: int) -> Split:
    split = Split(rows, batch_size, drop_last, rank, world_size)
    if Split(rows, batch_size, drop_last, world_size - 1, world_size).count() == 0:
        dropped = f" and drop_last leaves none of {rows}" if drop_last and rows >= world_size else ""
        raise NoDataError(
            f"{rows} samples are too few for {world_size} rank{'s' * (world_size > 1)} with batch_size {batch_size}"
            f"{dropped}: a rank would get no batch. Use fewer ranks, a smaller batch_size or more data."
        )
    ranks.warn_if_uneven([split])
    return split


def _check_state(state: dict[str, Any], here: dict[str, Any]) -> None:
    is_state = isinstance(state, dict) and {"version", "epoch", "position", "seed", "order", "source"} <= set(state)
    if not is_state or not all(isinstance(state[name], dict) for name in ("order", "source")):
        raise UsageError(f"this is no state of a loader: {str(state)[:80]}; give what state_dict() returned")
    if state["version"] != STATE_VERSION:
        raise UsageError(f"the state has version {state.get('version')!r}; expected {STATE_VERSION}")
    for name in ("epoch", "position", "seed"):
        check.whole(f"the state's {name}", state[name], 0)
    there = state["source"]
    if there.get("digest") != here["digest"]:
        raise OtherSourceError(f"the state belongs to another source. Saved: {_tell(there)}. Here: {_tell(here)}")


def _tell(source: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in source.items()) or "nothing"
