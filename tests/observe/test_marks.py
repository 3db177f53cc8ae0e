"""Device time from events: read later, never waited for, never in the script's way."""

import gc
import time
from collections.abc import Iterator

import pytest

from stoker.observe.marks import PENDING, Marks
from stoker.sim import Device


@pytest.fixture(autouse=True)
def _no_device_is_left() -> Iterator[None]:
    """Whoever waits for all devices of this process would wait for minutes: each is part of a cycle."""
    yield
    gc.collect()


def marked(device: Device, marks: Marks, seconds: float) -> None:
    marks.begin()
    device.timeline.queue("forward", seconds)
    marks.end()


def test_a_steps_time_on_the_device_is_read_once_it_has_passed() -> None:
    device, marks = Device(), Marks()
    marks.make = device.event
    marked(device, marks, 0.25)
    assert not marks.column  # the device is still busy, and nobody waited for it
    marked(device, marks, 0.5)
    device.synchronize()
    marks.read()
    queued_ns, took_us = marks.column[0::2], marks.column[1::2]
    assert took_us[0] >= 250_000
    assert took_us[1] == pytest.approx(500_000, abs=1)  # back to back: from the end of the first step's work
    assert queued_ns[0] < queued_ns[1] <= time.perf_counter_ns()


def test_a_device_far_behind_costs_no_memory() -> None:
    device, marks = Device(), Marks()
    marks.make = device.event
    for _ in range(10 * PENDING):
        marked(device, marks, 1.0)
    assert len(marks._pending) == PENDING
    assert not marks.column


@pytest.mark.parametrize("broken", ["record", "elapsed_time"])
def test_a_device_whose_events_fail_goes_without(broken: str) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("this backend has no timed events")

    kind = type("Event", (), {name: fail if name == broken else lambda *_: True for name in ("record", "query")})
    kind.elapsed_time = fail  # type: ignore[attr-defined]
    marks = Marks()
    marks.make = kind
    marks.begin()
    marks.end()
    assert marks.make is None
    assert not marks.column
