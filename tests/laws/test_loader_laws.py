"""The laws of loading, over every kind of source."""

import itertools
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loader.sources import KINDS, SLOW, check
from stoker.loader.front import Loader
from stoker.loader.source.interface import Source

law = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
kinds = pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in SLOW])
file_sizes = st.lists(st.integers(1, 40), min_size=1, max_size=4)
batch_sizes = st.integers(1, 17)
windows = st.integers(1, 12)
worlds = st.integers(1, 4)


@contextmanager
def opened(kind: str, sizes: list[int]) -> Iterator[Source]:
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "\\d+ samples remain")
        source = KINDS[kind](Path(folder), sizes)
        yield source
        source.close()


def read(loader: Loader) -> list[list[int]]:
    return [check(batch) for batch in loader]


def flat(batches: list[list[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(batches))


@kinds
@law
@given(sizes=file_sizes, batch_size=batch_sizes, window=windows, world=worlds, seed=st.integers(0, 9))
def test_over_all_ranks_each_sample_comes_exactly_once(
    kind: str, sizes: list[int], batch_size: int, window: int, world: int, seed: int
) -> None:
    world = min(world, sum(sizes))
    with opened(kind, sizes) as source:
        got, steps = [], set()
        for rank in range(world):
            with Loader(source, batch_size, True, window=window, seed=seed, rank=rank, world_size=world) as loader:
                batches = read(loader)
                assert len(batches) == len(loader)
                assert all(len(batch) <= batch_size for batch in batches)
                got += flat(batches)
                steps.add(len(batches))
        assert sorted(got) == list(range(sum(sizes)))
        if batch_size > 1 and batch_size * world <= sum(sizes):
            assert len(steps) == 1


@kinds
@law
@given(sizes=file_sizes, batch_size=batch_sizes, window=windows, world=worlds)
def test_drop_last_leaves_out_only_the_remainder(
    kind: str, sizes: list[int], batch_size: int, window: int, world: int
) -> None:
    rows = sum(sizes)
    world = max(1, min(world, rows // batch_size))
    batch_size = min(batch_size, rows)
    with opened(kind, sizes) as source:
        got = []
        for rank in range(world):
            with Loader(source, batch_size, True, drop_last=True, window=window, rank=rank, world_size=world) as loader:
                batches = read(loader)
                assert [len(batch) for batch in batches] == [batch_size] * len(loader)
                got += flat(batches)
        assert len(got) == len(set(got)) == rows - rows % (batch_size * world)


def in_global_order(source: Source, batch_size: int, world: int, **how: Any) -> list[int]:
    """What all ranks deliver, put back into the order of the epoch."""
    passes = []
    for rank in range(world):
        with Loader(source, batch_size, rank=rank, world_size=world, **how) as loader:
            passes.append(read(loader))
    return flat([batch for step in itertools.zip_longest(*passes, fillvalue=[]) for batch in step])


@kinds
@law
@given(sizes=file_sizes, window=windows, seed=st.integers(0, 9), first=st.data())
def test_the_order_does_not_depend_on_ranks_threads_or_batch_size(
    kind: str, sizes: list[int], window: int, seed: int, first: st.DataObject
) -> None:
    how: dict[str, Any] = {"shuffle": True, "window": window, "seed": seed}
    with opened(kind, sizes) as source:
        expected = in_global_order(source, 5, 1, threads=0, **how)
        world = first.draw(st.integers(1, min(4, sum(sizes))), "world")
        batch_size = first.draw(batch_sizes, "batch_size")
        threads = first.draw(st.integers(0, 4), "threads")
        assert in_global_order(source, batch_size, world, threads=threads, **how) == expected


@kinds
@law
@given(
    sizes=file_sizes,
    batch_size=batch_sizes,
    window=windows,
    shuffle=st.booleans(),
    worlds=st.tuples(worlds, worlds),
    stop=st.integers(0, 12),
    epoch=st.integers(0, 3),
)
def test_a_state_resumed_on_any_number_of_ranks_delivers_exactly_the_rest(
    kind: str,
    sizes: list[int],
    batch_size: int,
    window: int,
    shuffle: bool,
    worlds: tuple[int, int],
    stop: int,
    epoch: int,
) -> None:
    before, after = (min(world, sum(sizes)) for world in worlds)
    how: dict[str, Any] = {"shuffle": shuffle, "window": window, "seed": 3}
    with opened(kind, sizes) as source:
        given_out: list[int] = []
        states = []
        for rank in range(before):
            with Loader(source, batch_size, rank=rank, world_size=before, **how) as loader:
                loader.set_epoch(epoch)
                steps = min(stop, sum(sizes) // (batch_size * before))
                given_out += flat([check(batch) for batch in itertools.islice(loader, steps)])
                states.append(loader.state_dict())
        assert all(state == states[0] for state in states)
        rest: list[int] = []
        for rank in range(after):
            # A loader made with other settings of its own goes on in the saved order.
            with Loader(source, batch_size, shuffle, seed=8, window=1, rank=rank, world_size=after) as loader:
                loader.load_state_dict(states[0])
                rest += flat(read(loader))
        if len(given_out) == sum(sizes):  # the saved epoch was over: the rest is the next one
            given_out = []
        assert sorted(given_out + rest) == list(range(sum(sizes)))


@kinds
@law
@given(sizes=file_sizes, batch_size=batch_sizes, window=windows, stop=st.integers(0, 30))
def test_a_resumed_epoch_goes_on_as_if_never_interrupted_and_so_do_later_ones(
    kind: str, sizes: list[int], batch_size: int, window: int, stop: int
) -> None:
    with opened(kind, sizes) as source, Loader(source, batch_size, True, window=window) as whole:
        expected = [read(whole) for _ in range(3)]
        stop = min(stop, len(whole))
        with Loader(source, batch_size, True, window=window) as first:
            iterator = iter(first)
            begun = [check(next(iterator)) for _ in range(stop)]
            state = first.state_dict()
        for sets_epoch in (False, True):
            with Loader(source, batch_size, True, window=window) as second:
                second.load_state_dict(state)
                if sets_epoch:
                    second.set_epoch(0)
                later = [] if stop == len(whole) and not sets_epoch else read(second)
                assert begun + later == expected[0]
                assert [read(second), read(second)] == expected[1:]


@kinds
@law
@given(sizes=file_sizes, batch_size=batch_sizes, window=windows)
def test_epochs_differ_repeat_with_set_epoch_and_without_shuffle_are_file_order(
    kind: str, sizes: list[int], batch_size: int, window: int
) -> None:
    rows = sum(sizes)
    with opened(kind, sizes) as source:
        with Loader(source, batch_size, True, window=window) as loader:
            first, second = flat(read(loader)), flat(read(loader))
            loader.set_epoch(0)
            assert flat(read(loader)) == first
            assert flat(read(loader)) == second
            assert rows < 20 or window < 2 or first != second
        with Loader(source, batch_size, window=window) as loader:
            assert flat(read(loader)) == list(range(rows))


@kinds
@law
@given(sizes=file_sizes, batch_size=batch_sizes)
def test_a_consumer_that_keeps_every_batch_finds_all_of_them_unchanged(
    kind: str, sizes: list[int], batch_size: int
) -> None:
    with opened(kind, sizes) as source, Loader(source, batch_size, True) as loader:
        kept = list(loader)
        for _ in range(2):
            for _ in loader:
                pass
        assert sorted(flat([check(batch) for batch in kept])) == list(range(sum(sizes)))


@kinds
def test_with_full_shuffle_or_not_every_row_can_come_anywhere(kind: str) -> None:
    with opened(kind, [64]) as source:
        modes: list[Any] = [True] if source.holds_blocks else [True, "full"]
        for shuffle in modes:
            with Loader(source, 1, shuffle) as loader:
                firsts = {check(next(iter(loader)))[0] for _ in range(60)}
            assert len(firsts) > 30
