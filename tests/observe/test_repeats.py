"""Which calls come to the same when samples are made twice: by real functions under a real profile function."""

import random
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from stoker.observe.probe_repeats import Repeats

SIGNALS = np.random.default_rng(0).normal(size=(4, 5000)).astype(np.float32)
PACKED = [zlib.compress(np.repeat(one, 8).tobytes()) for one in SIGNALS]


@pytest.fixture(autouse=True)
def profiler() -> Iterator[None]:
    before = sys.getprofile()
    yield
    sys.setprofile(before)


def work() -> None:
    until = time.thread_time() + 0.01
    while time.thread_time() < until:
        pass


def smooth(signal: Any) -> Any:
    work()
    return signal * 0.5


def twin(signal: Any) -> Any:
    work()
    return {"low": signal * 0.5, "high": [signal * 2.0]}


def jitter(signal: Any) -> Any:
    work()
    return signal + random.random()


def smooth_then_jitter(signal: Any) -> Any:
    work()
    return smooth(signal) + random.random()


def unpack(packed: bytes) -> Any:
    work()
    return np.frombuffer(zlib.decompress(packed), np.float32)


def in_place(signal: Any) -> None:
    work()
    signal *= 0.5


def by_index(index: int) -> Any:
    work()
    return SIGNALS[index]


def shared(make: Callable[[Any], Any], given: Any) -> tuple[float, str]:
    """The share of the second making in calls that came to the same, and where most of it is."""
    repeats = Repeats()
    sys.setprofile(repeats)
    for one in given:
        make(one)
    repeats.second()
    start_s = repeats.now_s
    for one in given:
        make(one)
    seconds = repeats.now_s - start_s
    sys.setprofile(None)
    assert all(spent > 0 for spent in repeats.places.values())
    return sum(repeats.places.values()) / seconds, max(repeats.places, key=repeats.places.__getitem__, default="")


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy])
@pytest.mark.parametrize("make", [smooth, twin])
def test_a_function_that_comes_to_the_same_is_all_of_it(make: Any, kind: Any) -> None:
    share, place = shared(make, [kind(one) for one in SIGNALS])
    assert share > 0.5
    assert place.endswith(f" {make.__name__}")


@pytest.mark.parametrize("make", [jitter, in_place])
def test_what_chance_has_a_part_in_or_leaves_no_result_is_not_the_same(make: Any) -> None:
    assert shared(make, [one.copy() for one in SIGNALS]) == (0.0, "")


def test_of_work_that_chance_follows_only_the_work_counts() -> None:
    share, place = shared(smooth_then_jitter, SIGNALS)
    assert 0.2 < share < 0.8
    assert place.endswith(" smooth")


def test_a_decoder_is_none_because_its_result_is_larger_than_its_data() -> None:
    assert shared(unpack, PACKED)[0] == 0.0


def test_what_is_given_no_data_is_none() -> None:
    assert shared(by_index, range(4))[0] == 0.0


def test_a_call_of_a_library_by_the_users_line_counts_at_that_line() -> None:
    def make(signal: Any) -> Any:
        return np.median(np.lib.stride_tricks.sliding_window_view(signal, 31), axis=1) + random.random()

    share, place = shared(make, SIGNALS)
    assert share > 0.3
    assert place.startswith(__file__)
    assert place.endswith("make")
