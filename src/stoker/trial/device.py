"""Device memory of a process tree, where NVIDIA's management library can see it."""

import contextlib
import time
from collections.abc import Callable, Iterable
from typing import Any

# The driver answers in about a millisecond, and a full device ends in an error of the process, not of the machine.
EVERY_S = 0.5


class Meter:
    """Sums the device memory of the tree's processes; None where nothing can be seen, which is not 0.

    `query` yields pid and bytes of every process on every device. In a container the driver may know our processes by
    other pids than we do: then nothing is ever seen of them, and the answer stays None.
    """

    def __init__(
        self, query: Callable[[], Iterable[tuple[int, int]]] | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._query = query
        self._clock = clock
        self._due = clock()
        self._last: int | None = None

    def read(self, pids: set[int]) -> int | None:
        """Bytes on all devices together, at most half a second old."""
        if self._query is not None and self._clock() >= self._due:
            self._due = self._clock() + EVERY_S
            mine = [used_bytes for pid, used_bytes in self._query() if pid in pids]
            self._last = sum(mine) if mine or self._last is not None else None
        return self._last


def nvidia() -> Callable[[], Iterable[tuple[int, int]]] | None:
    """A query of all NVIDIA devices, or None if there are none."""
    try:
        import pynvml

        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    except Exception:  # noqa: BLE001 - no driver, no library, no permission: all mean that nothing can be seen
        return None
    return (lambda: _running(pynvml, handles)) if handles else None


def _running(nvml: Any, handles: list[Any]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for handle in handles:
        with contextlib.suppress(nvml.NVMLError):
            running = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
            found += [(one.pid, one.usedGpuMemory) for one in running if one.usedGpuMemory is not None]
    return found
