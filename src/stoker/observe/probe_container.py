"""What limits this process from outside: its control group, its own /dev/shm, and others that want the cores."""

import os
from _thread import get_ident
from contextlib import suppress
from pathlib import Path
from typing import Any

from stoker.observe.recorder import Recorder, clock
from stoker.records.codec import encode
from stoker.records.probes import Container

ROOT = Path("/sys/fs/cgroup")
SHM = "/dev/shm"  # noqa: S108
EVERY_NS = 500_000_000


def shared_memory() -> tuple[int | None, int | None]:
    """Bytes of this process's own /dev/shm, and those of them that are free."""
    try:
        stat = os.statvfs(SHM)
    except OSError:
        return None, None
    return stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize


class Limits:
    """Reads them now and then."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.due_ns = 0
        """When to look again."""
        self._first: tuple[int, float] | None = None
        self._last: tuple[int, float] | None = None
        self._quota: float | None = None
        self._shm_bytes: int | None = None
        self._shm_free: int | None = None

    def read(self) -> None:
        """Look again, at most twice a second."""
        now = clock()
        if now < self.due_ns:
            return
        self.due_ns = now + EVERY_NS
        quota, throttled = _quota()
        self._quota = quota if quota is not None else self._quota
        if throttled is not None:
            self._first = self._first or (now, throttled)
            self._last = (now, throttled)
        size, free = shared_memory()
        if size is not None and free is not None:
            self._shm_bytes = size
            self._shm_free = free if self._shm_free is None else min(self._shm_free, free)

    def fewer_threads(self, torch: Any) -> int | None:
        """As many threads as there are cores for this process, if torch has more of them."""
        self.read()
        cores = max(round(min(len(os.sched_getaffinity(0)), self._quota or float("inf"))), 1)
        return cores if torch.get_num_threads() > cores else None

    def facts(self) -> dict[str, Any]:
        """Everything that was read."""
        throttled = self._last[1] - self._first[1] if self._first and self._last else None
        seconds = (self._last[0] - self._first[0]) / 1e9 if self._first and self._last else 0.0
        return encode(Container(self._quota, throttled, seconds, self._shm_bytes, self._shm_free))  # type: ignore[no-any-return]


class Schedule:
    """How long the thread that asks has waited for a core, in all; 0 where the kernel does not say."""

    def __init__(self) -> None:
        self._file: int | None = None
        self._whose = (0, 0)

    def queued_ns(self) -> int:
        """Nanoseconds since the thread began."""
        whose = (os.getpid(), get_ident())
        if whose != self._whose:  # a daemon was another process when torch was imported
            self._whose = whose
            self._open()
        try:
            return int(os.pread(self._file, 96, 0).split()[1]) if self._file is not None else 0
        except (OSError, IndexError):
            return 0

    def _open(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
        with suppress(OSError):
            self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)


def _quota() -> tuple[float | None, float | None]:
    """Cores granted to this process's own group, and seconds it was held back; None without a limit."""
    for folder, limit, stat in _groups():
        quota = limit(folder)
        if quota is not None:
            return quota, stat(folder)
    return None, None


def _groups() -> list[Any]:
    found = []
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, names, path = line.split(":", 2)
            if names == "":
                found += [(folder, _limit_2, _held_2) for folder in _upwards(ROOT, path)]
            elif "cpu" in names.split(","):
                found += [(folder, _limit_1, _held_1) for folder in _upwards(ROOT / "cpu", path)]
    return found


def _upwards(root: Path, path: str) -> list[Path]:
    folder = root / path.lstrip("/")
    return [folder, *(parent for parent in folder.parents if parent.is_relative_to(root))]


def _limit_2(folder: Path) -> float | None:
    with suppress(OSError, ValueError):
        quota, period = (folder / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    return None


def _limit_1(folder: Path) -> float | None:
    with suppress(OSError, ValueError):
        quota = int((folder / "cpu.cfs_quota_us").read_text())
        return None if quota < 0 else quota / int((folder / "cpu.cfs_period_us").read_text())
    return None


def _held_2(folder: Path) -> float | None:
    return _stat(folder, "throttled_usec", 1e6)


def _held_1(folder: Path) -> float | None:
    return _stat(folder, "throttled_time", 1e9)


def _stat(folder: Path, key: str, unit: float) -> float | None:
    with suppress(OSError, ValueError):
        fields = dict(line.split() for line in (folder / "cpu.stat").read_text().splitlines())
        return int(fields[key]) / unit if key in fields else None
    return None
