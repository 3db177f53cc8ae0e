"""Which loops can bear that an epoch ends early."""

import dis
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from stoker.observe import loaders
from stoker.observe.options import Options
from stoker.observe.pace import Enough, Epoch, Pace
from stoker.observe.recorder import Recorder


def in_a_for_loop(it: Iterator[int]) -> None:
    for _ in it:
        pass


def with_a_default(it: Iterator[int]) -> None:
    next(it, None)


def ready(it: Iterator[int]) -> None:
    try:
        next(it)
    except StopIteration:
        print()


def ready_around_a_with(it: Iterator[int]) -> None:
    try:
        with nullcontext():
            next(it)
    except (ValueError, StopIteration):
        pass


def ready_at_the_second_clause(it: Iterator[int]) -> None:
    try:
        next(it)
    except KeyError:
        pass
    except StopIteration:
        pass
    finally:
        print()


def not_ready(it: Iterator[int]) -> None:
    next(it)


def in_a_with(it: Iterator[int], other: Iterator[int]) -> None:
    with nullcontext():
        next(it)
        try:
            next(other)
        except StopIteration:
            print()


def ready_for_something_else(it: Iterator[int]) -> None:
    try:
        next(it)
    except KeyError:
        raise StopIteration from None


def bears(function: Callable[..., Any]) -> bool:
    """Asked of the first place that takes from the first iterator."""
    offsets = [one.offset for one in dis.get_instructions(function) if one.opname in ("FOR_ITER", "CALL")]
    if function is in_a_with or function is ready_around_a_with:
        offsets = offsets[1:]  # the first call makes the context
    return loaders._bears(function.__code__, offsets[0])


@pytest.mark.parametrize(
    "loop", [in_a_for_loop, with_a_default, ready, ready_around_a_with, ready_at_the_second_clause]
)
def test_it_does(loop: Callable[..., Any]) -> None:
    assert bears(loop)


@pytest.mark.parametrize("loop", [not_ready, in_a_with, ready_for_something_else])
def test_it_does_not(loop: Callable[..., Any]) -> None:
    assert not bears(loop)


@pytest.mark.parametrize(
    ("environment", "whole"),
    [
        ({}, False),
        ({"WORLD_SIZE": "1"}, False),
        ({"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}, False),
        ({"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}, True),
        ({"WORLD_SIZE": "2"}, True),
    ],
)
def test_ranks_of_another_machine_are_never_left_alone(
    environment: dict[str, str], whole: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    pace = Pace(Options(budget_s=1e-9), Recorder(tmp_path), tmp_path)
    epoch = Epoch(1, None, bearable=True, grad=True, backwards_before=-1, batches=50)
    pace.begin(epoch)
    pace.first(epoch, epoch.began_ns)
    over = [stops(pace, replace(epoch, batches=n)) for n in range(50, 60) if not pace.whole]
    assert pace.whole is whole
    assert any(over) is not whole


def stops(pace: Pace, epoch: Epoch) -> bool:
    try:
        return pace.is_over(epoch, epoch.began_ns + 10**12)
    except Enough:
        return True
