"""Steps of the loop on batches that lie ready: how long they take when nothing has to be waited for."""

import math
import sys
import time
from typing import Any

from stoker.observe.probe_container import Schedule
from stoker.observe.recorder import clock
from stoker.records.probes import Replay


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
        self._start_ns = 0
        self._cpu_s = self._all_cpu_s = self._queued_ns = 0.0
        self._device_s: float | None = None

    def step(self) -> None:
        """A batch is about to be handed to the loop."""
        if not self._start_ns:
            if self._threads is not None:
                self._own_threads = self._torch.get_num_threads()
                self._torch.set_num_threads(self._threads)
            synchronize(self._torch)
            self._queued_ns, self._cpu_s, self._device_s = self._schedule.queued_ns(), time.thread_time(), device_busy()
            self._all_cpu_s = time.process_time()
            self._start_ns = clock()

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
        if not self._start_ns:
            return None
        synchronize(self._torch)
        end, cpu_s, device_s = clock(), time.thread_time(), device_busy()
        self.drop()
        return Replay(
            steps=self._steps,
            seconds=(end - self._start_ns) / 1e9,
            cpu_s=cpu_s - self._cpu_s,
            queued_s=(self._schedule.queued_ns() - self._queued_ns) / 1e9,
            device_s=device_s - self._device_s if device_s is not None and self._device_s is not None else None,
            before_s=self._before_s,
            batch_bytes=batch_bytes,
            batch_samples=None,
            known=self._known,
            all_cpu_s=time.process_time() - self._all_cpu_s,
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
