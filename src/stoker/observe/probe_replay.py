"""Steps of the loop on batches that lie ready: how long they take when nothing has to be waited for."""

import math
import sys
import time
from typing import Any, NamedTuple

from stoker.observe.probe_container import Schedule
from stoker.observe.recorder import clock
from stoker.records.probes import Replay


class Moment(NamedTuple):
    """What the clocks say."""

    queued_ns: int
    cpu_s: float
    all_cpu_s: float
    clock_ns: int

    def later(self, left: "Moment", back: "Moment") -> "Moment":
        """By as much as has passed meanwhile."""
        return Moment(
            self.queued_ns + back.queued_ns - left.queued_ns,
            self.cpu_s + back.cpu_s - left.cpu_s,
            self.all_cpu_s + back.all_cpu_s - left.all_cpu_s,
            self.clock_ns + back.clock_ns - left.clock_ns,
        )


class Timing:
    """The steps of one replay; the device is waited for at both ends and never in between.

    With `threads` torch has so many meanwhile; `drop` gives it back its own, also where the replay comes to nothing.
    """

    def __init__(
        self,
        torch: Any,
        schedule: Schedule,
        steps: int,
        before_s: float | None,
        *,
        known: bool = False,
        threads: int | None = None,
    ) -> None:
        self._torch, self._schedule = torch, schedule
        self._threads, self._own_threads = threads, 0
        self._steps, self._before_s, self._known = steps, before_s, known
        self._start: Moment | None = None
        self._left: Moment | None = None
        self._device_s: float | None = None

    def step(self) -> None:
        """A batch is about to be handed to the loop."""
        if self._start is None:
            if self._threads is not None:
                self._own_threads = self._torch.get_num_threads()
                self._torch.set_num_threads(self._threads)
            synchronize(self._torch)
            self._device_s = device_busy()
            self._start = self._now()

    def leave(self) -> None:
        """Another loader is asked for its part of the same step: what that takes is no computing."""
        if self._start is not None:
            self._left = self._now()

    def come_back(self) -> None:
        """It has given its batch."""
        if self._start is not None and self._left is not None:
            self._start, self._left = self._start.later(self._left, self._now()), None

    def _now(self) -> "Moment":
        return Moment(self._schedule.queued_ns(), time.thread_time(), time.process_time(), clock())

    @property
    def note(self) -> str:
        """What it is written down as."""
        return "replay" if self._threads is None else "fewer"

    def drop(self) -> None:
        """Nobody waits for it any more."""
        if self._own_threads:
            self._torch.set_num_threads(self._own_threads)
            self._own_threads = 0

    def end(self, batch_bytes: int) -> Replay | None:
        """All steps are done; None if none was begun."""
        if self._start is None:
            return None
        synchronize(self._torch)
        start, end, device_s = self._start, self._now(), device_busy()
        self.drop()
        return Replay(
            steps=self._steps,
            seconds=(end.clock_ns - start.clock_ns) / 1e9,
            cpu_s=end.cpu_s - start.cpu_s,
            queued_s=(end.queued_ns - start.queued_ns) / 1e9,
            device_s=device_s - self._device_s if device_s is not None and self._device_s is not None else None,
            before_s=self._before_s,
            batch_bytes=batch_bytes,
            batch_samples=None,
            known=self._known,
            all_cpu_s=end.all_cpu_s - start.all_cpu_s,
        )


def synchronize(torch: Any) -> None:
    """Wait for the device, real or simulated: only at the ends of a window."""
    simulated = sys.modules.get("stoker.sim.device")
    for device in simulated.live() if simulated else []:
        device.synchronize()
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


def half_ratio(torch: Any) -> float | None:
    """How many times faster a simulated device is in half precision, by its own costs; None for a real one."""
    simulated = sys.modules.get("stoker.sim.device")
    devices = simulated.live() if simulated else []
    if not devices:
        return None
    device: Any = max(devices, key=lambda one: one.busy_s)
    price: Any = getattr(simulated, "seconds", None)

    def cost_s() -> float:
        return math.fsum(price(device.costs[name], device.batch_size) for name in ("forward", "backward"))

    full_s = cost_s()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half_s = cost_s()
    return full_s / half_s if half_s else None


def device_busy() -> float | None:
    """Busy seconds of the simulated device; a real one's are not known from here."""
    simulated = sys.modules.get("stoker.sim.device")
    devices = simulated.live() if simulated else []
    return max(float(device.busy_s) for device in devices) if devices else None
