"""What a process tree keeps in /dev/shm, and the removal of what it left behind there; nobody else's is touched."""

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from stoker.trial.tree import all_pids

DIRECTORY = Path("/dev/shm")  # noqa: S108 - it is the subject
_BLOCK_BYTES = 512  # unit of st_blocks, POSIX
# Finding out who holds what may take this share of one core.
SCAN_SHARE = 0.003
# torch names a segment after the process that made it: torch_PID_RANDOM_COUNT.
_NAMED_AFTER_PID = re.compile(r"torch_(\d+)_\w+")
_MAPPED = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) \S+ \S+ (\S+) (\d+) +/dev/shm/", re.MULTILINE)


class Segments:
    """Follows the files of one tree. Files that were there before it started are never counted and never removed."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.is_there = DIRECTORY.is_dir()
        self._device = DIRECTORY.stat().st_dev if self.is_there else -1
        self._before = {(name, inode) for name, inode, _ in self._files()}
        self._used_before = self._used_bytes()
        self._is_used = False
        self._held: dict[int, int] = {}  # inode → bytes, held by the tree at the last scan
        self._ours: set[int] = set()  # every inode that the tree was ever seen to hold
        self._clock = clock
        self._due = 0.0

    def read(self, pids: Iterable[int], limit_bytes: int | None) -> int:
        """Bytes of the tree in /dev/shm. Looks into the processes only once anybody has used /dev/shm at all.

        How much is in use says little: others may give back more than the tree takes.
        """
        grown_bytes = self._used_bytes() - self._used_before
        self._is_used = self._is_used or grown_bytes != 0
        if self._is_used and self._clock() >= self._due:
            self.scan(pids)
        elif limit_bytes is not None and max(grown_bytes, self._size_bytes()) > limit_bytes:
            self.scan(pids)  # decide on nothing that may be stale
        return self._size_bytes()

    def _size_bytes(self) -> int:
        left = {inode: size for _, inode, size in self._new() if inode in self._ours}
        return sum((self._held | left).values())

    def scan(self, pids: Iterable[int]) -> None:
        """Note which files these processes have open or mapped."""
        begun_s = time.thread_time()
        before = {inode for _, inode in self._before}
        self._held = {inode: size for pid in pids for inode, size in held(pid, self._device) if inode not in before}
        self._ours.update(self._held)
        self._due = self._clock() + (time.thread_time() - begun_s) / SCAN_SHARE

    def remove_leaks(self, seen: set[int]) -> list[str]:
        """Remove what the ended tree left, unless a living process still holds it; `seen` are all pids it ever had."""
        self._held = {}
        leaks = [(name, inode) for name, inode, _ in self._new() if inode in self._ours or _maker(name) in seen]
        if not leaks:
            return []
        in_use = {inode for pid in all_pids() for inode, _ in held(pid, self._device)}
        removed = [name for name, inode in leaks if inode not in in_use]
        for name in removed:
            with contextlib.suppress(OSError):
                (DIRECTORY / name).unlink()
        return removed

    def _new(self) -> list[tuple[str, int, int]]:
        return [file for file in self._files() if file[:2] not in self._before]

    def _files(self) -> list[tuple[str, int, int]]:
        """Name, inode and bytes of our user's plain files in /dev/shm."""
        found = []
        with contextlib.suppress(OSError), os.scandir(DIRECTORY) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    stat = entry.stat(follow_symlinks=False)
                    if entry.is_file(follow_symlinks=False) and stat.st_uid == os.getuid():
                        found.append((entry.name, stat.st_ino, stat.st_blocks * _BLOCK_BYTES))
        return found

    def _used_bytes(self) -> int:
        if not self.is_there:
            return 0
        stat = os.statvfs(DIRECTORY)
        return (stat.f_blocks - stat.f_bfree) * stat.f_frsize


def held(pid: int, device: int) -> list[tuple[int, int]]:
    """Inode and bytes of each file in /dev/shm that a process has mapped or open, also if its name is gone."""
    found: dict[int, int] = {}
    with contextlib.suppress(OSError):
        here = b"%02x:%02x" % (os.major(device), os.minor(device))
        for start, end, where, inode in _MAPPED.findall(Path(f"/proc/{pid}/maps").read_bytes()):
            if where != here:
                continue  # a container's own /dev/shm, whose inodes have the same numbers
            found[int(inode)] = found.get(int(inode), 0) + int(end, 16) - int(start, 16)
    with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/fd") as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                stat = entry.stat()
                if stat.st_dev == device:
                    found[stat.st_ino] = stat.st_blocks * _BLOCK_BYTES
    return list(found.items())


def _maker(name: str) -> int | None:
    match = _NAMED_AFTER_PID.fullmatch(name)
    return int(match[1]) if match else None
