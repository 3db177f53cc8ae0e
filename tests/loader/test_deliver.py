"""Threads that make batches ahead: some rest while the consumer is slow, and nobody is forgotten."""

import pickle
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stoker
from stoker import errors

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
