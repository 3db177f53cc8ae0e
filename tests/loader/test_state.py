"""Where a loader stands: a state goes on where it was taken, and one that was damaged is refused."""

import itertools
import pickle
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stoker
from stoker import errors

ROWS = 100


@pytest.fixture(params=["records", "dataset"])
def data(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "dataset":
        return [{"data": number} for number in range(ROWS)]
    np.save(tmp_path / "a.npy", np.arange(ROWS))
    return stoker.open(tmp_path)


def rows(batches: Any) -> list[int]:
    return [row for batch in batches for row in batch["data"].tolist()]


def after(data: Any, batches: int) -> tuple[list[int], dict[str, Any]]:
    """What came up to a number of batches, and the state there."""
    with stoker.Loader(data, 10, shuffle=True) as loader:
        return rows(itertools.islice(loader, batches)), loader.state_dict()


def test_the_usual_loop_of_epochs_delivers_the_rest_of_the_one_that_was_interrupted(data: Any) -> None:
    begun, state = after(data, 4)
    with stoker.Loader(data, 10, shuffle=True) as loader:
        loader.load_state_dict(state)
        loader.set_epoch(state["epoch"])
        assert sorted(begun + rows(loader)) == list(range(ROWS))
        loader.set_epoch(state["epoch"] + 1)
        assert len(rows(loader)) == ROWS


def test_the_usual_loop_of_epochs_delivers_nothing_again_of_an_epoch_that_was_over(data: Any) -> None:
    _, state = after(data, ROWS // 10)
    with stoker.Loader(data, 10, shuffle=True) as loader:
        loader.load_state_dict(state)
        assert (state["epoch"], state["position"]) == (0, ROWS)
        loader.set_epoch(0)
        assert rows(loader) == []
        loader.set_epoch(1)
        assert sorted(rows(loader)) == list(range(ROWS))


def test_an_epoch_is_begun_anew_once_another_was_asked_for_or_delivered(data: Any) -> None:
    _, state = after(data, 4)
    with stoker.Loader(data, 10, shuffle=True) as loader:
        whole = rows(loader)
        loader.load_state_dict(state)
        loader.set_epoch(3)
        loader.set_epoch(0)
        assert rows(loader) == whole
        loader.load_state_dict(state)
        assert len(rows(loader)) == ROWS - 40
        loader.set_epoch(0)
        assert rows(loader) == whole


def test_a_samplers_epoch_goes_on_where_its_state_stands_too() -> None:
    sampler = stoker.BlockSampler([10] * 4, window=2)
    begun = list(itertools.islice(sampler, 15))
    other = stoker.BlockSampler([10] * 4, window=2)
    other.load_state_dict(sampler.state_dict())
    other.set_epoch(0)
    assert sorted(begun + list(other)) == list(range(40))


@pytest.mark.parametrize("damage", [{"epoch": "0"}, {"position": 2.0}, {"position": -1}, {"order": {}}])
def test_a_samplers_damaged_state_is_refused(damage: dict[str, Any]) -> None:
    sampler = stoker.BlockSampler([10] * 4)
    with pytest.raises(errors.UsageError, match=r"the state's (epoch|position) is|the state was taken with {}"):
        sampler.load_state_dict(sampler.state_dict() | damage)


def test_a_loader_pickled_behind_the_last_batch_of_an_epoch_delivers_the_next(data: Any) -> None:
    with stoker.Loader(data, 10, shuffle=True) as loader:
        list(itertools.islice(loader, ROWS // 10))
        with pickle.loads(pickle.dumps(loader)) as copy:
            assert sorted(rows(copy)) == list(range(ROWS))


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("damage", "says"),
    [
        ({"position": 50.0}, "the state's position is 50.0; expected a whole number from 0 on"),
        ({"position": "5"}, "the state's position is '5'"),
        ({"position": -5}, "the state's position is -5"),
        ({"epoch": None}, "the state's epoch is None"),
        ({"seed": "0"}, "the state's seed is '0'"),
        ({"order": {}}, "the same settings"),
        ({"order": None}, "no state of a loader"),
        ({"source": {}}, "belongs to another source. Saved: nothing. Here: kind"),
        ({"source": "x"}, "no state of a loader"),
    ],
)
def test_a_damaged_state_is_refused_and_changes_nothing(data: Any, damage: dict[str, Any], says: str) -> None:
    _, state = after(data, 4)
    with stoker.Loader(data, 10, shuffle=True) as loader:
        with pytest.raises(errors.UsageError, match=says):
            loader.load_state_dict(state | damage)
        assert sorted(rows(loader)) == list(range(ROWS))


@pytest.mark.parametrize("window", [None, "8", 0, 2.5])
def test_a_state_with_a_damaged_window_is_refused(tmp_path: Path, window: Any) -> None:
    np.save(tmp_path / "a.npy", np.arange(ROWS))
    with stoker.Loader(stoker.open(tmp_path), 10, shuffle=True) as loader:
        state = loader.state_dict()
        state["order"]["window_blocks"] = window
        with pytest.raises(errors.UsageError, match=r"the state's window is .*; expected a whole number from 1 on"):
            loader.load_state_dict(state)


def test_ranks_that_will_step_less_after_a_resume_are_warned_of(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(101))
    _, state = after(source := stoker.open(tmp_path), 10)
    loaders = [stoker.Loader(source, 10, shuffle=True, rank=rank, world_size=4) for rank in range(4)]
    for loader in loaders:
        with pytest.warns(UserWarning, match="1 samples remain for the last batch of 4 ranks"):
            loader.load_state_dict(state)
    assert [len(list(loader)) for loader in loaders] == [1, 0, 0, 0]
    for loader in loaders:
        loader.close()
    with warnings.catch_warnings(), stoker.Loader(source, 10, True, rank=0, world_size=4) as even:
        warnings.simplefilter("error")
        even.load_state_dict(state | {"position": 40})


class NoLength:
    """A sampler that does not know how many indices it has."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(6))


def test_a_state_over_a_sampler_without_a_length_is_loaded() -> None:
    data: Any = list(range(6))
    with stoker.Loader(data, 2, sampler=NoLength()) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with stoker.Loader(data, 2, sampler=NoLength()) as loader:
        loader.load_state_dict(state)
        assert [batch.tolist() for batch in loader] == [[2, 3], [4, 5]]
