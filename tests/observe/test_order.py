"""What a sampler takes is measured in CPU time where that matters, and seldom asked for where it does not."""

import time
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, Sampler, TensorDataset

from stoker.observe import loaders
from stoker.observe.options import Options
from stoker.observe.pace import Pace
from stoker.observe.patches import Patches
from stoker.observe.recorder import Recorder
from stoker.observe.workers import ORDERED, ROW

QUICK, SLOW = 40, 20


class Drawn(Sampler[int]):
    """Quick at first, then as told."""

    def __init__(self, then: Callable[[], None]) -> None:
        self.then = then

    def __len__(self) -> int:
        return QUICK + SLOW

    def __iter__(self) -> Iterator[int]:
        for index in range(QUICK + SLOW):
            if index >= QUICK:
                self.then()
            yield index


@pytest.fixture
def rows(tmp_path: Path) -> Iterator[Callable[[Callable[[], None]], list[tuple[int, int]]]]:
    """Iterates over a loader with such a sampler; nanoseconds and calls of each row that was written."""
    recorder, patches = Recorder(tmp_path), Patches()
    loaders.install(torch, recorder, patches, Pace(Options(whole=True), recorder, tmp_path))

    def iterate(then: Callable[[], None]) -> list[tuple[int, int]]:
        data = TensorDataset(torch.zeros(QUICK + SLOW))
        for _ in DataLoader(data, batch_size=1, sampler=Drawn(then)):
            pass
        recorder.flush(60)  # some of it may be in the file already
        numbers = array("q", next(tmp_path.glob("*.batches")).read_bytes())
        found = [numbers[at : at + ROW] for at in range(0, len(numbers), ROW)]
        return [(row[2], row[3]) for row in found if row[0] == ORDERED]

    yield iterate
    patches.restore()
    recorder.close()


def burn() -> None:
    until = time.thread_time() + 0.004
    while time.thread_time() < until:
        pass


def test_a_quick_sampler_is_asked_for_its_cpu_time_a_few_times_only(
    rows: Callable[[Callable[[], None]], list[tuple[int, int]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loaders, "SLOW_NS", 1 << 60)  # it may lose its core at any time
    found = rows(lambda: None)
    assert [calls for _, calls in found] == [1] * loaders.FINE_CALLS  # the others make up less than one row


def test_a_sampler_that_becomes_slow_is_seen(rows: Callable[[Callable[[], None]], list[tuple[int, int]]]) -> None:
    found = rows(burn)
    assert sum(spent for spent, _ in found) > (SLOW - 2) * 4e6
    assert len(found) > loaders.FINE_CALLS + SLOW // 2


def test_a_sampler_that_sleeps_computes_nothing(rows: Callable[[Callable[[], None]], list[tuple[int, int]]]) -> None:
    slept = []

    def sleep() -> None:
        begun = time.perf_counter_ns()
        time.sleep(0.02)
        slept.append(time.perf_counter_ns() - begun)

    found = rows(sleep)
    assert sum(spent for spent, _ in found) < sum(slept) / 2
