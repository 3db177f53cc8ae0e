"""Host memory of a process tree, read from /proc: every page counted once, page cache not at all.

Two readings. The *bound* is cheap (a few microseconds a process) and too high by what forked processes share. The
*exact* one walks page tables (milliseconds per GiB), so it is taken when it decides something, or when it costs little.
"""

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# Proportional shares: of the pages that k processes share, each has 1/k. Linux 5.4 and newer.
_SHARES = re.compile(rb"^(Pss_Anon|Pss_Shmem|SwapPss):\s+(\d+) kB", re.MULTILINE)
# Well below the 1024 open files that a process commonly may have.
_KEEP_OPEN = 400
# What readings may take of one core, so that a watch of 200 processes stays below two per cent (benchmarks/guard.py).
BOUND_SHARE = 0.007
EXACT_SHARE = 0.003
# A bound that grew by this factor is read exactly at once, so that no peak is missed;.
GROWN = 1.1


class Reader:
    """Keeps one file open per process: reading again costs a third of opening, and a reused pid cannot deceive it."""

    def __init__(self) -> None:
        self._fds: dict[int, int] = {}

    def bound(self, pids: Iterable[int]) -> int:
        """Bytes of anonymous memory, pages shared after a fork counted in each process."""
        wanted = set(pids)
        for pid in self._fds.keys() - wanted:
            os.close(self._fds.pop(pid))
        return sum(self._anonymous(pid) for pid in wanted) * _PAGE_BYTES

    def _anonymous(self, pid: int) -> int:
        fd = self._fds.get(pid)
        try:
            if fd is None:
                fd = os.open(f"/proc/{pid}/statm", os.O_RDONLY | os.O_CLOEXEC)
            _, resident, shared, *_ = os.pread(fd, 128, 0).split()
        except (OSError, ValueError):  # it has ended
            resident = shared = b"0"
        if fd is not None and pid not in self._fds:
            self._keep(pid, fd)
        return int(resident) - int(shared)

    def _keep(self, pid: int, fd: int) -> None:
        if len(self._fds) < _KEEP_OPEN:
            self._fds[pid] = fd
        else:
            os.close(fd)

    def close(self) -> None:
        """Close all files."""
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()


def exact(pids: Iterable[int]) -> tuple[int, int] | None:
    """Bytes of anonymous (or swapped) and of mapped shared memory; None where the kernel cannot say."""
    anon_bytes = shmem_bytes = 0
    known = False
    for pid in pids:
        with contextlib.suppress(OSError):
            with open(f"/proc/{pid}/smaps_rollup", "rb", buffering=0) as file:  # noqa: PTH123
                parts = {name: int(kib) * 1024 for name, kib in _SHARES.findall(file.read(4096))}
            known = known or b"Pss_Anon" in parts
            anon_bytes += parts.get(b"Pss_Anon", 0) + parts.get(b"SwapPss", 0)
            shmem_bytes += parts.get(b"Pss_Shmem", 0)
    return (anon_bytes, shmem_bytes) if known else None


def available_bytes() -> int:
    """What the machine can still give without swapping, as the kernel estimates it."""
    with open("/proc/meminfo", "rb", buffering=0) as file:  # noqa: PTH123
        text = file.read(256)
    return int(text[text.index(b"MemAvailable:") + 13 :].split(maxsplit=1)[0]) * 1024


def oom_kills() -> int:
    """How many processes the kernel has ended for want of memory since the machine started."""
    with contextlib.suppress(OSError):
        match = re.search(rb"^oom_kill (\d+)$", Path("/proc/vmstat").read_bytes(), re.MULTILINE)
        return int(match[1]) if match else 0
    return 0


class Meter:
    """Decides when a reading is worth its price.

    Each kind of reading has its share of one core. It comes sooner if the machine's available memory (one cheap look)
    says that a quarter of what the tree had left may have been taken since.
    """

    def __init__(self, limit_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit_bytes = limit_bytes
        self._reader = Reader()
        self._clock = clock
        self._bound = _Reading(0, 0, 0.0)
        self._exact = _Reading(0, 0, 0.0)
        self._shared_bytes = 0

    def read(self, pids: Iterable[int], shm_bytes: int, free_bytes: int) -> int:
        """Private and shared memory of the tree.

        `shm_bytes` is what it is known to hold in /dev/shm, `free_bytes` what the machine has available now.
        """
        shared_bytes = max(self._shared_bytes, shm_bytes)
        room_bytes = self.limit_bytes - min(self._exact.size_bytes, self._bound.size_bytes) - shared_bytes
        if self._clock() >= self._bound.due or self._bound.free_bytes - free_bytes > room_bytes // 4:
            begun_s = time.thread_time()
            bound_bytes = self._reader.bound(pids)
            self._bound = _Reading(bound_bytes, free_bytes, self._due(begun_s, BOUND_SHARE))
        # Below its bound the tree cannot have passed the limit. Above, memory must have been taken: either the bound
        # grew, or pages shared since a fork became private, which only the machine's available memory shows.
        taken_bytes = max(self._bound.size_bytes - self._exact.bound_bytes, self._exact.free_bytes - free_bytes)
        in_doubt = self._bound.size_bytes + shared_bytes > self.limit_bytes and taken_bytes > room_bytes // 4
        has_grown = self._bound.size_bytes > GROWN * self._exact.bound_bytes
        if in_doubt or has_grown or self._clock() >= self._exact.due:
            begun_s = time.thread_time()
            size_bytes, self._shared_bytes = exact(pids) or (self._bound.size_bytes, 0)
            due = self._due(begun_s, EXACT_SHARE)
            self._exact = _Reading(size_bytes, free_bytes, due, self._bound.size_bytes)
        # What the bound grew by since is taken for private: less than a tenth, and never what decides about the limit.
        since_bytes = max(0, self._bound.size_bytes - self._exact.bound_bytes)
        private_bytes = min(self._exact.size_bytes + since_bytes, self._bound.size_bytes)
        return private_bytes + max(self._shared_bytes, shm_bytes)

    def _due(self, begun_s: float, share: float) -> float:
        return self._clock() + (time.thread_time() - begun_s) / share

    def close(self) -> None:
        """Close the files it keeps open."""
        self._reader.close()


@dataclass(frozen=True, slots=True)
class _Reading:
    """What was read, what the machine had available then, and when the next one is due by its price."""

    size_bytes: int
    free_bytes: int
    due: float
    bound_bytes: int = 0
