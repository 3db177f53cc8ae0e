"""The machine around a run, read from outside: CPU, memory, shared memory, disks, network, quota, device."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from stoker.observe.private import private_bytes
from stoker.records.observed import Machine, Meter

MEMORY_SHARE = 0.005
"""Private memory costs the kernel a walk over the process's pages, so it is read this rarely of the time."""
SHM = Path("/dev/shm")  # noqa: S108
CGROUP = Path("/sys/fs/cgroup")


class Meters:
    """Reads the processes below one process."""

    def __init__(self, pid: int, room: Callable[[], int | None] = lambda: None) -> None:
        """`room` is what else limits the run, in bytes that it may still take; None means nothing does."""
        self._room = room
        self._root = psutil.Process(pid)
        self._private: dict[str, int] = {}
        self._rested_s = 0.0
        self._nvml = _Nvml()

    def read(self) -> Meter | None:
        """One reading, or None when nothing is left to read."""
        try:
            processes = [self._root, *self._root.children(recursive=True)]
        except psutil.Error:
            return None
        cpu: dict[str, float] = {}
        rss: dict[str, int] = {}
        for process in processes:
            with suppress(psutil.Error):
                times = process.cpu_times()
                cpu[str(process.pid)] = times.user + times.system
                rss[str(process.pid)] = process.memory_info().rss
        self._read_private(processes)
        disk, net = _attempt(psutil.disk_io_counters), _attempt(psutil.net_io_counters)
        busy, device_bytes = self._nvml.read()
        busy_s, stolen_s = _core_time()
        return Meter(
            time_ns=time.perf_counter_ns(),
            cpu_s=cpu,
            private_bytes={pid: size for pid, size in self._private.items() if pid in rss},
            rss_bytes=rss,
            shm_bytes=_used(SHM),
            free_bytes=self._free_bytes(),
            running=_pressure(),
            throttled_s=_throttled_s(),
            disk_read_bytes=disk.read_bytes if disk else None,
            disk_write_bytes=disk.write_bytes if disk else None,
            net_received_bytes=net.bytes_recv if net else None,
            net_sent_bytes=net.bytes_sent if net else None,
            device_busy_share=busy,
            device_bytes=device_bytes,
            busy_s=busy_s,
            stolen_s=stolen_s,
        )

    def _free_bytes(self) -> int:
        machine_bytes, room_bytes = int(psutil.virtual_memory().available), self._room()
        return machine_bytes if room_bytes is None else min(machine_bytes, room_bytes)

    def _read_private(self, processes: list[psutil.Process]) -> None:
        if time.perf_counter() < self._rested_s:
            return
        start = time.perf_counter()
        for process in processes:
            size = private_bytes(process.pid)
            if size is not None:
                self._private[str(process.pid)] = size
        took = time.perf_counter() - start
        self._rested_s = time.perf_counter() + took / MEMORY_SHARE


def machine() -> Machine:
    """What a run has at its disposal here."""
    total = os.statvfs(SHM) if SHM.is_dir() else None
    return Machine(
        cores=len(os.sched_getaffinity(0)),
        quota_cores=quota_cores(),
        ram_bytes=psutil.virtual_memory().total,
        shm_bytes=total.f_blocks * total.f_frsize if total else None,
    )


def quota_cores() -> float | None:
    """The cores that the cgroup grants, v2 or v1; None without a limit."""
    with suppress(OSError, ValueError):
        quota, period = (CGROUP / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    with suppress(OSError, ValueError):
        limit = int((CGROUP / "cpu/cpu.cfs_quota_us").read_text())
        return None if limit < 0 else limit / int((CGROUP / "cpu/cpu.cfs_period_us").read_text())
    return None


def _core_time() -> tuple[float | None, float | None]:
    """Seconds of all cores that anybody used, and that the host of a virtual machine gave to others instead."""
    times = _attempt(psutil.cpu_times)
    stolen_s = getattr(times, "steal", None)  # Linux only
    if stolen_s is None:
        return None, None
    return sum(getattr(times, name) for name in ("user", "nice", "system", "irq", "softirq")), stolen_s


def _throttled_s() -> float | None:
    for name, key, unit in (("cpu.stat", "throttled_usec", 1e6), ("cpu/cpu.stat", "throttled_time", 1e9)):
        with suppress(OSError, ValueError):
            fields = dict(line.split() for line in (CGROUP / name).read_text().splitlines())
            if key in fields:
                return int(fields[key]) / unit
    return None


def _pressure() -> float | None:
    """Processes running or waiting for a core right now."""
    with suppress(OSError, ValueError):
        return float(Path("/proc/loadavg").read_text().split()[3].partition("/")[0])
    return None


def _used(path: Path) -> int | None:
    with suppress(OSError):
        stat = os.statvfs(path)
        return (stat.f_blocks - stat.f_bfree) * stat.f_frsize
    return None


def _attempt(read: Callable[[], Any]) -> Any:
    with suppress(Exception):
        return read()
    return None


class _Nvml:
    """The first NVIDIA device, where there is one."""

    def __init__(self) -> None:
        self._handle = None
        with suppress(Exception):  # no driver, no device, no library: all mean the same
            import pynvml

            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByIndex(0)

    def read(self) -> tuple[float | None, int | None]:
        if self._handle is None:
            return None, None
        import pynvml

        busy = pynvml.nvmlDeviceGetUtilizationRates(self._handle).gpu / 100
        return busy, int(pynvml.nvmlDeviceGetMemoryInfo(self._handle).used)
