"""Device time from events that are recorded in passing and read later: a step is never made to wait for its device.

An event lies on the device's own queue. One before a step's first forward and one after its optimizer's step give the
time from the start of the step's work to its end as the device saw it; the host reads them once both have passed.
"""

import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

PENDING = 64
"""Pairs that may wait to be read; a device that is further behind is not worth more."""


class Marks:
    """One pair of events for each step. `column`: when its work was queued (ns), how long it lay on the device (us)."""

    def __init__(self) -> None:
        self.column = array("q")
        self.make: Callable[[], Any] | None = None
        """Gives a new event of the device, once there is one."""
        self._begun: Any = None
        self._pending: deque[tuple[int, Any, Any]] = deque(maxlen=PENDING)
        self._spare: list[Any] = []

    def begin(self) -> None:
        """The step's first work is about to be queued."""
        if self._begun is None:
            with self._harmless():
                event = self._event()
                event.record()
                self._begun = event

    def end(self) -> None:
        """The step's last work is queued."""
        if self._begun is not None:
            with self._harmless():
                event = self._event()
                event.record()
                self._pending.append((time.perf_counter_ns(), self._begun, event))
                self._begun = None
                self.read()

    def read(self) -> None:
        """Write down what the device has passed by now."""
        while self._pending and self._pending[0][2].query():
            queued_ns, begun, ended = self._pending.popleft()
            self.column.extend((queued_ns, round(begun.elapsed_time(ended) * 1e3)))
            self._spare += (begun, ended)

    @contextmanager
    def _harmless(self) -> Iterator[None]:
        """A device whose events cannot be timed goes without; the script never hears of it."""
        try:
            yield
        except Exception:  # noqa: BLE001  whatever a backend raises
            self.make = self._begun = None
            self._pending.clear()

    def _event(self) -> Any:
        assert self.make is not None
        return self._spare.pop() if self._spare else self.make()
