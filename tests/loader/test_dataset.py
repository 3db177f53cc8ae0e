"""Loader over a torch Dataset: DataLoader's arguments and values, Stoker's order and laws."""

import itertools
import os
import signal
import time
from collections.abc import Iterator
from multiprocessing import resource_sharer
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, TensorDataset, get_worker_info

from stoker import errors
from stoker.loader.front import Loader


class Squares(Dataset[Any]):
    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> dict[str, Any]:
        assert type(index) is int
        return {"i": index, "square": torch.tensor([index**2]), "name": f"n{index}", "pid": os.getpid()}


class Fetched(Squares):
    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        return [{"i": index, "batch": len(indices)} for index in indices]


class Count(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        return iter(range(first, 20, step))


def ids(batches: Any) -> list[list[int]]:
    return [batch["i"].tolist() for batch in batches]


@pytest.mark.parametrize("workers", [0, 2])
def test_without_shuffle_every_batch_equals_dataloaders(workers: int) -> None:
    how: dict[str, Any] = {"batch_size": 4, "num_workers": workers}
    with Loader(Squares(10), **how) as loader:
        for _ in range(2):
            for ours, theirs in zip(loader, DataLoader(Squares(10), **how), strict=True):
                assert ours.keys() == theirs.keys()
                assert torch.equal(ours["square"], theirs["square"])
                assert ours["name"] == theirs["name"]
        assert len(loader) == 3


def test_it_takes_the_arguments_that_dataloader_takes_in_the_same_places() -> None:
    import inspect

    theirs = list(inspect.signature(DataLoader).parameters)[1:]
    ours = list(inspect.signature(Loader).parameters)[1:]
    assert ours[: theirs.index("prefetch_factor")] == theirs[: theirs.index("prefetch_factor")]
    assert set(theirs) <= set(ours)


@settings(deadline=None)
@given(
    rows=st.integers(1, 50),
    batch_size=st.integers(1, 9),
    world=st.integers(1, 3),
    stop=st.integers(0, 9),
    drop_last=st.booleans(),
)
@pytest.mark.filterwarnings("ignore:.*samples remain")
def test_the_laws_hold_exactly_once_and_elastic_resume(
    rows: int, batch_size: int, world: int, stop: int, drop_last: bool
) -> None:
    if drop_last and rows < batch_size * world:
        drop_last = False
    world = min(world, rows)
    begun: list[int] = []
    states = []
    for rank in range(world):
        how: dict[str, Any] = {"seed": 5, "drop_last": drop_last, "rank": rank, "world_size": world}
        with Loader(Squares(rows), batch_size, True, **how) as loader:
            iterator = iter(loader)
            for batch in itertools.islice(iterator, min(stop, rows // (batch_size * world))):
                begun += batch["i"].tolist()
            states.append(loader.state_dict())
    assert all(state == states[0] for state in states)
    with Loader(Squares(rows), 3, True, rank=0, world_size=1) as loader:
        loader.load_state_dict(states[0])
        rest = list(itertools.chain(*ids(loader)))
    assert sorted((begun if states[0]["position"] < rows else []) + rest) == list(range(rows))


def test_order_does_not_depend_on_workers_and_differs_by_epoch() -> None:
    with Loader(Squares(40), 7, True) as plain, Loader(Squares(40), 7, True, num_workers=2) as parallel:
        first, second = ids(plain), ids(plain)
        assert ids(parallel) == first
        assert ids(parallel) == second
        assert first != second
        plain.set_epoch(0)
        assert ids(plain) == first


def test_workers_live_on_from_one_epoch_to_the_next_and_end_with_the_loader() -> None:
    loader = Loader(Squares(40), 7, True, num_workers=2)
    pids = [{pid for batch in loader for pid in batch["pid"].tolist()} for _ in range(3)]
    assert pids[0] == pids[1] == pids[2]
    assert os.getpid() not in pids[0]
    loader.close()
    assert psutil.Process().children(recursive=True) == []


def test_a_state_is_right_with_batches_in_flight() -> None:
    with Loader(Squares(100), 5, True, num_workers=2, prefetch_factor=4) as loader:
        iterator = iter(loader)
        begun = ids(itertools.islice(iterator, 7))
        state = loader.state_dict()
        whole = begun + ids(iterator)
    with Loader(Squares(100), 5, True, seed=9) as other:
        other.load_state_dict(state)
        assert begun + ids(other) == whole


def test_batched_fetch_is_used_where_there_is_one() -> None:
    with Loader(Fetched(10), 4) as loader:
        assert [batch["batch"].tolist() for batch in loader] == [[4] * 4, [4] * 4, [2] * 2]


def test_iterable_datasets_samplers_and_single_samples_pass_through() -> None:
    with Loader(Count(), 6) as loader:
        assert [batch.tolist() for batch in loader] == [batch.tolist() for batch in DataLoader(Count(), 6)]
        assert len(list(loader)) == 4
    with Loader(Count(), 5, num_workers=2) as loader:
        assert sorted(i for batch in loader for i in batch.tolist()) == list(range(20))
    data = TensorDataset(torch.arange(10))
    sampler = RandomSampler(data, generator=torch.Generator().manual_seed(3))
    with Loader(data, 4, sampler=sampler) as loader:
        assert sorted(torch.cat([batch for (batch,) in loader]).tolist()) == list(range(10))
    with Loader(data, batch_sampler=[[0, 1], [5]]) as loader:
        assert [batch.tolist() for (batch,) in loader] == [[0, 1], [5]]
    with Loader(data, None) as loader:
        assert [int(x) for (x,) in loader] == list(range(10))


def test_an_iterable_dataset_resumes_behind_what_was_delivered() -> None:
    with Loader(Count(), 3) as loader:
        iterator = iter(loader)
        begun = [batch.tolist() for batch in itertools.islice(iterator, 2)]
        state = loader.state_dict()
    with Loader(Count(), 3) as other:
        other.load_state_dict(state)
        assert [i for batch in [*begun, *(b.tolist() for b in other)] for i in batch] == list(range(20))


def test_single_samples_keep_the_laws_too() -> None:
    data: Any = list(range(9))
    with Loader(data, None, True, seed=1) as whole, Loader(data, None, True, seed=1, num_workers=1) as again:
        order = list(whole)
        assert order == list(again)
        assert sorted(order) == data != order
    with Loader(data, None, True, seed=1) as loader:
        begun = list(itertools.islice(loader, 4))
        state = loader.state_dict()
    with Loader(data, None, True) as other:
        other.load_state_dict(state)
        assert begun + list(other) == order
    with pytest.warns(UserWarning, match="some ranks get one batch less"):
        ranks = [list(Loader(data, None, rank=rank, world_size=2)) for rank in range(2)]
    assert sorted(ranks[0] + ranks[1]) == data


def test_what_the_users_collate_returns_is_delivered_also_none() -> None:
    def collate(samples: list[int]) -> list[int] | None:
        return None if 0 in samples else samples

    data: Any = range(8)
    with Loader(data, 4, collate_fn=collate) as loader:
        assert list(loader) == [None, [4, 5, 6, 7]]


@pytest.mark.parametrize("workers", [0, 1])
def test_two_passes_at_once_over_an_iterable_dataset_are_independent(workers: int) -> None:
    with Loader(Count(), 5, num_workers=workers) as loader:
        first = iter(loader)
        begun = [next(first)]
        assert len(list(loader)) == 4
        assert [batch.tolist() for batch in [*begun, *first]] == [list(range(i, i + 5)) for i in range(0, 20, 5)]


@pytest.mark.parametrize("other", [{"batch_size": 1}, {"batch_size": 3, "num_workers": 2}, {"batch_size": None}])
def test_a_position_that_counts_other_batches_is_refused(other: dict[str, Any]) -> None:
    with Loader(Count(), 3) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with Loader(Count(), **other) as loader, pytest.raises(errors.OtherSourceError, match="the same settings"):
        loader.load_state_dict(state)


@pytest.mark.parametrize("data", [Count(), Squares(20)], ids=["iterable", "map-style"])
@pytest.mark.parametrize("workers", [0, 1])
def test_closed_in_the_middle_it_says_so_and_no_worker_is_left(data: Any, workers: int) -> None:
    before = set(psutil.Process().children())
    loader = Loader(data, 2, num_workers=workers)
    iterator = iter(loader)
    next(iterator)
    loader.close()
    with pytest.raises(errors.ClosedError, match="the loader is closed"):
        next(iterator)
    psutil.wait_procs(set(psutil.Process().children()) - before, timeout=60)
    assert set(psutil.Process().children()) <= before


def test_after_the_last_batch_of_the_users_sampler_the_next_epoch_comes() -> None:
    def make() -> Loader:
        return Loader(TensorDataset(torch.arange(6)), 2, sampler=list(range(6)))

    with make() as loader:
        batches = iter(loader)
        for _ in range(3):
            next(batches)
        state = loader.state_dict()
    with make() as other:
        other.load_state_dict(state)
        assert len(list(other)) == 3


def test_an_epoch_that_was_set_while_another_ran_is_what_the_state_names() -> None:
    with Loader(Squares(8), 2, True) as loader:
        batches = iter(loader)
        next(batches)
        loader.set_epoch(5)
        assert len(list(batches)) == 3
        state = loader.state_dict()
        following = ids(loader)
    with Loader(Squares(8), 2, True) as other:
        other.load_state_dict(state)
        assert ids(other) == following


def test_figures_go_on_over_all_passes() -> None:
    with Loader(Squares(10), 4) as loader:
        for _ in range(3):
            next(iter(loader))
        list(loader)
        assert (loader.stats().batches, loader.stats().rows) == (6, 22)


@pytest.mark.parametrize("state", [None, {}, {"version": 1}, "x"])
def test_what_is_no_state_is_refused(state: Any) -> None:
    with Loader(Squares(4), 2) as loader, pytest.raises(errors.UsageError, match="no state of a loader"):
        loader.load_state_dict(state)


class Dies(Squares):
    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == 13:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


def test_a_worker_killed_from_outside_is_an_error_and_leaves_nothing() -> None:
    loader = Loader(Dies(40), 4, num_workers=2)
    with pytest.raises(errors.WorkerDiedError, match=r"DataLoader worker .* (killed by signal|exited unexpectedly)"):
        list(loader)
    loader.close()
    assert psutil.Process().children(recursive=True) == []


class Fades(Squares):
    """Lets go of what it shares when it is asked for index 13, and is killed a moment later."""

    def __init__(self, count: int, faded: Path) -> None:
        super().__init__(count)
        self.faded = faded

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == 13:
            resource_sharer.stop()
            self.faded.touch()
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


def test_a_worker_that_dies_while_its_batch_is_fetched_is_an_error_too(tmp_path: Path) -> None:
    """Its third batch is made and not taken, and the fourth one, which is asked for with the second, kills it."""
    with Loader(Fades(40, tmp_path / "faded"), 4, num_workers=1, prefetch_factor=2) as loader:
        batches = iter(loader)
        next(batches), next(batches)
        while not (tmp_path / "faded").exists():
            time.sleep(0.01)
        with pytest.raises(errors.WorkerDiedError, match="DataLoader worker"):
            list(batches)


class Fails(Squares):
    def __getitem__(self, index: int) -> dict[str, Any]:
        raise LookupError(f"no sample {index}")


@pytest.mark.parametrize("workers", [0, 2])
def test_an_exception_in_the_dataset_is_the_users_own(workers: int) -> None:
    with Loader(Fails(4), 2, num_workers=workers) as loader, pytest.raises(LookupError, match="no sample 0"):
        list(loader)


class Stops(Squares):
    def __getitem__(self, index: int) -> dict[str, Any]:
        raise StopIteration(index)


def test_a_dataset_that_raises_the_end_of_iteration_does_not_end_the_epoch() -> None:
    with Loader(Stops(4), 2) as loader, pytest.raises(errors.LoaderError, match="StopIteration was raised"):
        list(loader)


def test_arguments_that_do_not_apply_are_refused() -> None:
    with pytest.raises(errors.UsageError, match="window does not apply to a torch Dataset"):
        Loader(Squares(4), 2, window=3)
    with pytest.raises(errors.UsageError, match="memory does not apply to a torch Dataset"):
        Loader(Squares(4), 2, memory="1GiB")
    with pytest.raises(errors.UsageError, match="on_error does not apply to a torch Dataset"):
        Loader(Squares(4), 2, on_error="skip")
    with pytest.raises(errors.UsageError, match="device is 'nowhere', which is not to be had here"):
        Loader(Squares(4), 2, device="nowhere")
    with Loader(Squares(4), 2, in_order=False) as loader, pytest.raises(errors.UsageError, match="in_order=False"):
        loader.state_dict()


@pytest.mark.parametrize("path", ["shards/*.npy", Path("shards"), b"shards"])
def test_a_path_in_place_of_what_it_opens_is_refused(path: Any) -> None:
    with pytest.raises(errors.UsageError, match=r"is a path; did you mean stoker\.Loader\(stoker\.open\("):
        Loader(path, 4)


@pytest.mark.parametrize(
    ("data", "how", "says"),
    [
        (None, {}, r"data is None; expected what stoker\.open returned, or a torch Dataset"),
        (5, {}, "data is 5; expected"),
        (iter([1]), {}, "data is <list_iterator .*; expected"),
        ([1, 2], {"shuffle": "ful"}, "shuffle is 'ful'; expected None, True, False or 'full'"),
        ([1, 2], {"batch_sampler": [[0]], "batch_size": 2}, "batch_sampler makes the batches; leave batch_size"),
        ([1, 2], {"batch_sampler": [[0]], "drop_last": True}, "batch_sampler makes the batches; leave"),
        ([1, 2], {"batch_size": None, "drop_last": True}, "batch_size is None, so that there is no last batch"),
        (Count(), {"batch_size": None, "drop_last": True}, "batch_size is None, so that there is no last batch"),
    ],
)
def test_what_dataloader_could_not_load_either_is_refused(data: Any, how: dict[str, Any], says: str) -> None:
    with pytest.raises(errors.UsageError, match=says):
        Loader(data, **how)


def test_a_million_samples_are_ordered_without_a_python_list() -> None:
    with Loader(Squares(5_000_000), 2, True) as loader:
        batch = next(iter(loader))
    assert len(np.unique(batch["i"])) == 2
