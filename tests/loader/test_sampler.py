"""BlockSampler gives the loader's order to a DataLoader."""

import itertools
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

import stoker
from stoker import errors
from stoker.loader.order import Order
from stoker.loader.source.blocks import SizedBlocks

sizes = st.lists(st.integers(1, 12), min_size=1, max_size=8)


@pytest.mark.filterwarnings("ignore:\\d+ samples remain")
@settings(deadline=None)
@given(blocks=sizes, window=st.integers(1, 9), world=st.integers(1, 3), batch_size=st.none() | st.integers(1, 9))
def test_over_all_ranks_each_index_comes_exactly_once(
    blocks: list[int], window: int, world: int, batch_size: int | None
) -> None:
    drawn: list[Any] = []
    for rank in range(world):
        sampler = stoker.BlockSampler(blocks, window=window, rank=rank, world_size=world, batch_size=batch_size)
        expected = len(sampler)  # of the epoch that comes next: windows, and so batches, differ between epochs
        mine = list(sampler)
        assert len(mine) == expected
        drawn += mine if batch_size is None else itertools.chain.from_iterable(mine)
    assert sorted(drawn) == list(range(sum(blocks)))


@pytest.mark.filterwarnings("ignore:\\d+ samples remain")
@settings(deadline=None)
@given(
    blocks=st.lists(st.integers(6, 30), min_size=1, max_size=8),
    window=st.integers(1, 9),
    world=st.integers(2, 3),
    batch_size=st.integers(2, 9),
    steps=st.integers(0, 12),
)
def test_ranks_make_the_same_number_of_steps_and_stop_at_the_same_place(
    blocks: list[int], window: int, world: int, batch_size: int, steps: int
) -> None:
    samplers = [
        stoker.BlockSampler(blocks, window=window, rank=rank, world_size=world, batch_size=batch_size)
        for rank in range(world)
    ]
    whole = [len(sampler) for sampler in samplers]
    if all(size >= batch_size * world for size in blocks):
        assert len(set(whole)) == 1
        drawn = [list(itertools.islice(sampler, steps)) for sampler in samplers]
        assert len({str(sampler.state_dict()) for sampler in samplers}) == 1
        assert all(1 <= len(batch) <= batch_size for batches in drawn for batch in batches)


def test_its_length_is_that_of_the_epoch_that_runs() -> None:
    sampler = stoker.BlockSampler([5, 9, 3, 7, 2], window=2, batch_size=4)
    for _ in range(6):
        batches = iter(sampler)
        drawn = [next(batches)]
        expected = len(sampler)
        assert len([*drawn, *batches]) == expected


def test_no_block_at_all_is_refused() -> None:
    with pytest.raises(errors.NoDataError, match="block_sizes is empty"):
        stoker.BlockSampler([])


def test_the_order_is_the_loaders() -> None:
    order = Order(SizedBlocks([5, 9, 3]), window_blocks=2, seed=4).epoch(0)
    rows = [row for index in range(2) for w in [order.window(index)] for row in w.rows(w.start, w.stop)]
    assert list(stoker.BlockSampler([5, 9, 3], window=2, seed=4)) == rows


@given(blocks=sizes, window=st.integers(1, 4), batch_size=st.integers(1, 9))
def test_batches_stay_inside_the_window(blocks: list[int], window: int, batch_size: int) -> None:
    sampler = stoker.BlockSampler(blocks, window=window, batch_size=batch_size)
    block_of = np.repeat(np.arange(len(blocks)), blocks)
    epoch = Order(SizedBlocks(blocks), window_blocks=window).epoch(0)
    windows = [set(epoch.window(index).blocks.tolist()) for index in range(-(-len(blocks) // window))]
    for batch in sampler:
        used = {int(block_of[row]) for row in batch}
        assert any(used <= window for window in windows)


@given(blocks=sizes, stop=st.integers(0, 30), batch_size=st.none() | st.integers(1, 5))
def test_a_state_goes_on_where_it_was_taken(blocks: list[int], stop: int, batch_size: int | None) -> None:
    whole = list(stoker.BlockSampler(blocks, window=2, batch_size=batch_size))
    sampler = stoker.BlockSampler(blocks, window=2, batch_size=batch_size)
    iterator = iter(sampler)
    begun = list(itertools.islice(iterator, min(stop, len(whole) - 1)))
    other = stoker.BlockSampler(blocks, window=2, batch_size=batch_size)
    other.load_state_dict(sampler.state_dict())
    assert begun + list(other) == whole
    with pytest.raises(errors.OtherSourceError, match="the state was taken with"):
        stoker.BlockSampler([*blocks, 1], window=2).load_state_dict(sampler.state_dict())


def test_a_dataloader_takes_it_and_epochs_differ() -> None:
    dataset = TensorDataset(torch.arange(100))
    sampler = stoker.BlockSampler([10] * 10, window=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first, second = (torch.cat([b for (b,) in DataLoader(dataset, 8, sampler=sampler)]).tolist() for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(100))
    assert first != second
    sampler.set_epoch(0)
    assert torch.cat([b for (b,) in DataLoader(dataset, 8, sampler=sampler)]).tolist() == first
