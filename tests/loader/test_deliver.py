"""Threads that make batches ahead: some rest while the consumer is slow, and nobody is forgotten."""

import itertools
import pickle
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import stoker
from stoker import errors
from stoker.loader.deliver import Stream, Times
from stoker.loader.ranks import Ticket
from stoker.loader.source.blocks import Ints, SizedBlocks

ROWS = 4_000
LATE_S = 20.0


@pytest.mark.timeout(10 * LATE_S)
def test_threads_that_rest_are_not_woken_in_place_of_one_that_works(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((ROWS, 4096), np.float32))
    with stoker.Loader(stoker.open(str(tmp_path)), batch_size=4, shuffle=True, threads=8, memory="1MiB") as loader:
        rows = sum(_slowly(loader))
        assert (rows, loader.stats().threads) == (ROWS, 1)
        assert sum(len(batch["data"]) for batch in loader) == ROWS


def test_a_map_that_returns_nothing_is_an_error_and_not_an_empty_epoch(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(20))

    def scale(batch: Any) -> None:
        batch["data"] *= 2

    says = "it returned None; let it return the batch"
    with stoker.Loader(stoker.open(tmp_path), 4, map=scale) as loader, pytest.raises(errors.MapError, match=says):
        next(iter(loader))


def test_a_state_taken_with_a_window_of_the_users_own_is_loaded_where_it_was_taken(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((64, 1 << 17), np.uint8))
    options: Any = {"shuffle": True, "window": 6, "memory": "6MiB"}
    with stoker.Loader(stoker.open(tmp_path), 2, **options) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with stoker.Loader(stoker.open(tmp_path), 2, **options) as loader:
        loader.load_state_dict(state)
        assert len(list(loader)) == 31


@pytest.mark.parametrize("kind", ["records", "dataset"])
def test_a_pickled_loader_goes_on_where_it_stands(tmp_path: Path, kind: str) -> None:
    np.save(tmp_path / "a.npy", np.arange(20))
    data: Any = stoker.open(tmp_path) if kind == "records" else [{"data": number} for number in range(20)]
    with stoker.Loader(data, 4, shuffle=True, seed=3) as loader:
        batches = iter(loader)
        next(batches)
        copy = pickle.loads(pickle.dumps(loader))
        with copy:
            assert [batch["data"].tolist() for batch in copy] == [batch["data"].tolist() for batch in batches]
            assert copy.state_dict() == loader.state_dict()


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"WORLD_SIZE": "2"}, "RANK is '' and WORLD_SIZE is '2'"),
        ({"WORLD_SIZE": "2", "RANK": "2"}, "rank is 2 of 2; expected 0 to 1"),
        ({"WORLD_SIZE": "many", "RANK": "0"}, "WORLD_SIZE is 'many'"),
    ],
)
def test_half_an_environment_of_ranks_is_refused(
    environment: dict[str, str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    data: Any = list(range(4))
    ranks: Any = {"rank": 0.0, "world_size": 2.0}
    with pytest.raises(errors.UsageError, match=says):
        stoker.Loader(data)
    with pytest.raises(errors.UsageError, match=r"rank is 0\.0; expected a whole number"):
        stoker.Loader(data, **ranks)


def _slowly(loader: stoker.Loader) -> Any:
    """The rows of each batch of an epoch, for a consumer that never has to wait."""
    batches: Any = iter(loader)
    stream = batches._stream
    for _ in range(len(loader)):
        until = time.monotonic() + LATE_S
        while stream._taken not in stream._made:
            assert time.monotonic() < until, "no batch is ready, and no thread makes one"
            time.sleep(0.0005)
        yield len(next(batches)["data"])


class Broken(SizedBlocks):
    """A table of blocks that fails, in a place where no source should."""

    def sizes(self, blocks: Ints) -> Ints:
        raise RuntimeError(f"no sizes of {len(blocks)} blocks")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("threads", [0, 2])
def test_a_fault_inside_the_loader_reaches_the_consumer(tmp_path: Path, threads: int) -> None:
    np.save(tmp_path / "a.npy", np.arange(40))
    source = stoker.open(tmp_path)
    source.blocks = Broken([20, 20])
    with stoker.Loader(source, 4, window=1, threads=threads) as loader:
        batches = iter(loader)
        with pytest.raises(RuntimeError, match="no sizes of 2 blocks"):
            next(batches)
        assert list(batches) == []


@pytest.mark.timeout(60)
@pytest.mark.parametrize("threads", [0, 2])
def test_a_sequence_of_batches_that_breaks_off_is_not_the_end_of_an_epoch(tmp_path: Path, threads: int) -> None:
    np.save(tmp_path / "a.npy", np.arange(40))

    def breaks() -> Iterator[Ticket]:
        yield Ticket(0, 0, 4, 4)
        raise ValueError("no second batch")

    with stoker.Loader(stoker.open(tmp_path), 4, threads=threads) as loader:
        stream = cast("Stream", loader._engine.stream(0, 0))
        broken = Stream(breaks(), stream._windows, stream._batches, threads=threads, depth=4, times=Times())
        stream.close()
        try:
            for _ in range(2):
                with pytest.raises((ValueError, errors.LoaderError), match=r"no second batch|broke off"):
                    _run_out(broken)
        finally:
            broken.close()


def _run_out(stream: Stream) -> None:
    while stream.get(0) is not None:
        pass


@pytest.mark.timeout(120)
@pytest.mark.parametrize("how", [{"threads": 2}, {"threads": 0}, {}], ids=["threads", "no threads", "dataset"])
def test_threads_that_share_an_iterator_get_different_batches_and_all_end(tmp_path: Path, how: dict[str, Any]) -> None:
    np.save(tmp_path / "a.npy", np.arange(ROWS))
    data: Any = stoker.open(tmp_path) if how else [{"data": row} for row in range(ROWS)]
    with stoker.Loader(data, 10, shuffle=True, **how) as loader:
        for _ in range(4):
            batches, got = iter(loader), list[int]()
            consumers = [threading.Thread(target=_take_all, args=(batches, got), daemon=True) for _ in range(4)]
            for consumer in consumers:
                consumer.start()
            for consumer in consumers:
                consumer.join(LATE_S)
            assert not any(consumer.is_alive() for consumer in consumers)
            assert sorted(got) == list(range(ROWS))


def _take_all(batches: Any, got: list[int]) -> None:
    for batch in batches:
        got.extend(batch["data"].tolist())


@pytest.mark.parametrize(("threads", "presses"), [(0, {3, 7}), (1, {1})])
def test_a_loop_that_goes_on_after_ctrl_c_misses_no_batch(tmp_path: Path, threads: int, presses: set[int]) -> None:
    np.save(tmp_path / "a.npy", np.arange(100))
    made = itertools.count(1)

    def press(batch: Any) -> Any:
        if next(made) in presses:
            time.sleep(0.2 * threads)  # until the consumer waits
            signal.raise_signal(signal.SIGINT)
        return batch

    with stoker.Loader(stoker.open(tmp_path), 10, shuffle=True, threads=threads, map=press) as loader:
        batches, got, stopped = iter(loader), list[int](), 0
        while len(got) < 100:
            try:
                got += next(batches)["data"].tolist()
            except KeyboardInterrupt:
                stopped += 1
        assert (sorted(got), stopped) == (list(range(100)), len(presses))
        assert (loader.state_dict()["position"], list(batches)) == (100, [])
