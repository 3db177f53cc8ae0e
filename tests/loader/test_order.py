"""The order is a permutation, whatever the sizes, and any part of it can be computed alone."""

import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.loader import order as module
from stoker.loader.order import Computed, Order, Sorted
from stoker.loader.source.blocks import Blocks, EvenBlocks, SizedBlocks

KEY = np.array([5, 7], np.uint64)


@given(n=st.integers(1, 3000))
def test_both_kinds_of_permutation_are_permutations_and_know_where_each_item_went(n: int) -> None:
    for permutation in (Sorted(n, KEY), Computed(n, KEY)):
        items = permutation.take(0, n)
        assert sorted(items.tolist()) == list(range(n))
        assert permutation.find(int(items[n // 2])) == n // 2


def test_a_part_of_a_computed_permutation_is_the_same_as_that_part_of_the_whole() -> None:
    n = 200_000
    whole = Computed(n, KEY).take(0, n)
    np.testing.assert_array_equal(Computed(n, KEY).take(65_000, 140_000), whole[65_000:140_000])
    assert len(np.unique(whole)) == n


@pytest.mark.parametrize("kind", [Sorted, Computed])
def test_a_permutation_looks_random(kind: type[Sorted] | type[Computed]) -> None:
    n = 100_000
    items = kind(n, KEY).take(0, n)
    assert abs(np.corrcoef(items, np.arange(n))[0, 1]) < 0.02
    # A uniform permutation follows an item by its successor once, on average.
    assert (np.diff(items) == 1).sum() < 10
    halves = np.bincount(items[: n // 2] // (n // 10), minlength=10)
    assert abs(halves - n / 20).max() < 5 * (n / 20) ** 0.5


tables = st.one_of(
    st.builds(EvenBlocks, st.integers(1, 400), st.integers(1, 50)),
    st.builds(SizedBlocks, st.lists(st.integers(1, 30), min_size=1, max_size=20)),
)


@settings(deadline=None)
@given(table=tables, window=st.integers(1, 25), epoch=st.integers(0, 5), computed=st.booleans(), shuffle=st.booleans())
def test_windows_cover_every_row_once_and_positions_find_their_window(
    table: Blocks, window: int, epoch: int, computed: bool, shuffle: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if computed:
            patch.setattr(module, "SORTED_MOST", 0)
        order = Order(table, window_blocks=window, seed=1, shuffle=shuffle)
        this = order.epoch(epoch)
        seen: list[int] = []
        for index in range(order.windows):
            found = this.window(index)
            assert found.start == len(seen)
            assert this.find(found.start) == this.find(found.stop - 1) == index
            rows = found.rows(found.start, found.stop)
            assert set(table.of(rows).tolist()) == set(found.blocks.tolist())
            seen += rows.tolist()
        assert sorted(seen) == list(range(table.rows))
        assert shuffle or seen == sorted(seen)


def test_a_billion_rows_need_neither_time_nor_memory() -> None:
    code = (
        "import resource, numpy as np\n"
        "from stoker.loader.order import Order\n"
        "from stoker.loader.source.blocks import EvenBlocks\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "order = Order(EvenBlocks(1_000_000_007, 64), window_blocks=4096, seed=0)\n"
        "for at in (0, 999_999_999):\n"
        "    epoch = order.epoch(2)\n"
        "    window = epoch.window(epoch.find(at))\n"
        "    assert window.start <= at < window.stop\n"
        "    assert (window.rows(window.start, window.stop) < 1_000_000_007).all()\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    begin = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert time.perf_counter() - begin < 60
    assert int(done.stdout) < 64 * 1024  # KiB


def test_the_order_is_the_same_on_every_machine_and_in_every_release() -> None:
    window = Order(EvenBlocks(1000, 8), window_blocks=16, seed=42).epoch(1).window(2)
    assert window.rows(window.start, window.start + 8).tolist() == [210, 241, 792, 143, 992, 192, 795, 76]


@settings(deadline=None)
@given(
    lengths=st.lists(st.integers(1, 2000), min_size=1, max_size=400),
    rows=st.integers(1, 9),
    groups=st.integers(1, 70),
    epoch=st.integers(0, 3),
)
def test_batches_of_like_lengths_hold_each_row_once_and_pad_no_more_than_is_promised(
    lengths: list[int], rows: int, groups: int, epoch: int
) -> None:
    """In a run of batches that is sorted together: less than a batch of rows, each as long as lengths differ."""
    of = np.array(lengths)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BUCKET_GROUPS", groups)
        window = Order(EvenBlocks(len(of), 7), window_blocks=1000, seed=1, shuffle=True).epoch(epoch).window(0)
        window.bucket(of[window.rows(0, len(of))], rows)
    found = window.rows(0, len(of))
    assert sorted(found.tolist()) == list(range(len(of)))
    for start in range(0, len(of) - rows + 1, groups * rows):
        run = of[found[start : start + groups * rows]]
        whole = run[: len(run) // rows * rows].reshape(-1, rows)
        padding = (whole.max(axis=1, keepdims=True) - whole).sum()
        assert padding <= (rows - 1) * (whole.max() - whole.min())
