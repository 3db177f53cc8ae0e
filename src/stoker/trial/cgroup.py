"""A memory cgroup below (v1) or beside (v2) our own, where the kernel lets us write one; else none, silently.

The group is never placed outside of what limits us already: its processes stay under every limit that we are under.
"""

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PREFIX = "stoker-"

# A v1 limit that nobody set reads as the largest multiple of a page below 2^63.
_UNLIMITED_BYTES = 1 << 60
# The kernel may hold a group for a moment after its last process was reaped.
_REMOVE_S = 2.0


@dataclass(frozen=True, slots=True)
class Files:
    """What the files of one version are called."""

    version: str
    limit: str
    usage: str
    swap: tuple[str, str] | None
    events: str
    anon: str
    shmem: str
    file: tuple[str, str]


V1 = Files(
    version="v1",
    limit="memory.limit_in_bytes",
    usage="memory.usage_in_bytes",
    swap=("memory.memsw.limit_in_bytes", "{limit}"),
    events="memory.oom_control",
    anon="total_rss",
    shmem="total_shmem",
    file=("total_active_file", "total_inactive_file"),
)
V2 = Files(
    version="v2",
    limit="memory.max",
    usage="memory.current",
    swap=("memory.swap.max", "0"),
    events="memory.events",
    anon="anon",
    shmem="shmem",
    file=("active_file", "inactive_file"),
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where we are in the hierarchy that controls memory: its mount point, and our own directory below it."""

    files: Files
    mount: Path
    own: Path

    def chain(self) -> Iterator[Path]:
        """Our own group and every one that encloses it."""
        group = self.own
        while group != self.mount:
            yield group
            group = group.parent
        yield self.mount

    def parent_for_trials(self) -> Path | None:
        """The group below which a trial's group can stand without escaping a limit; None where there is no such."""
        if self.files is V1:
            return self.own
        # A v2 group that holds processes cannot share memory out among children (the root can); so stand beside it.
        if not (self.own / self.files.limit).exists():
            parent = self.own
        elif limit_bytes(self.own, self.files) is None and self.own != self.mount:
            parent = self.own.parent
        else:
            return None
        return parent if "memory" in _words(parent / "cgroup.subtree_control") else None


def place(proc: Path = Path("/proc/self")) -> Place | None:
    """Our place in the hierarchy that controls memory; None where there is none, or where it is not mounted."""
    try:
        mounts = (proc / "mountinfo").read_text().splitlines()
        paths = [line.split(":", 2) for line in (proc / "cgroup").read_text().splitlines()]
    except OSError:
        return None
    for _, controllers, path in paths:
        files = V1 if "memory" in controllers.split(",") else V2 if not controllers else None
        found = files and _mounted(files, path, mounts)
        if found:
            return found
    return None


def _mounted(files: Files, path: str, mounts: list[str]) -> Place | None:
    for line in mounts:
        before, _, after = line.partition(" - ")
        _, _, _, root, mount = before.split()[:5]
        kind, _, options = after.split(maxsplit=2)
        right = kind == "cgroup2" if files is V2 else kind == "cgroup" and "memory" in options.split(",")
        if not right:
            continue
        own = Path(mount, os.path.relpath(path, root))  # in a container the mount may show only our part of the tree
        if ".." not in own.parts and (own / "cgroup.procs").exists() and _controls_memory(files, own):
            return Place(files, Path(mount), own)
    return None


def _controls_memory(files: Files, own: Path) -> bool:
    return files is V1 or "memory" in _words(own / "cgroup.controllers")


class Group:
    """One trial's memory cgroup. Everything that its processes start is inside, and no page is counted twice."""

    def __init__(self, path: Path, files: Files) -> None:
        self.path = path
        self.files = files

    def limit(self, size_bytes: int) -> None:
        """Let the kernel hold this limit, swap included: swapping would only hide what does not fit."""
        (self.path / self.files.limit).write_text(str(size_bytes))
        if self.files.swap:
            name, value = self.files.swap
            with contextlib.suppress(OSError):  # kernels without swap accounting lack the file
                (self.path / name).write_text(value.format(limit=size_bytes))
        with contextlib.suppress(OSError):  # v2: what is left of a tree after one of it was killed is of no use
            (self.path / "memory.oom.group").write_text("1")

    def join(self) -> None:
        """Move the calling process into the group."""
        (self.path / "cgroup.procs").write_text("0")

    def pids(self) -> set[int]:
        """The processes inside."""
        return {int(pid) for pid in _words(self.path / "cgroup.procs")}

    def memory(self) -> tuple[int, int]:
        """Bytes of private and shared memory together (no page cache), and of shared memory alone."""
        stat = _table(self.path / "memory.stat")
        shmem_bytes = stat.get(self.files.shmem, 0)
        return stat.get(self.files.anon, 0) + shmem_bytes, shmem_bytes

    def oom_kills(self) -> int:
        """How many processes the kernel has ended here because of the limit."""
        return _table(self.path / self.files.events).get("oom_kill", 0)

    def kill(self) -> None:
        """End all processes inside at once, where the kernel can (v2 since Linux 5.14)."""
        with contextlib.suppress(OSError):
            (self.path / "cgroup.kill").write_text("1")

    def remove(self) -> bool:
        """Remove the group, which must be empty of processes; True if it is gone."""
        deadline = time.monotonic() + _REMOVE_S
        while True:
            try:
                self.path.rmdir()
            except FileNotFoundError:
                return True
            except OSError:
                if time.monotonic() > deadline:
                    return False
                time.sleep(0.01)
            else:
                return True


def create(name: str, limit_bytes: int) -> Group | None:
    """A new group that holds `limit_bytes`, or None where none can be written."""
    here = place()
    parent = here and here.parent_for_trials()
    if not here or not parent:
        return None
    group = Group(parent / f"{PREFIX}{name}", here.files)
    try:
        group.path.mkdir()
    except OSError:
        return None
    try:
        group.limit(limit_bytes)
    except OSError:
        group.remove()
        return None
    return group


def find(name: str) -> Group | None:
    """The group of this name, if it still exists."""
    here = place()
    parent = here and here.parent_for_trials()
    path = parent and parent / f"{PREFIX}{name}"
    return Group(path, here.files) if here and path and path.is_dir() else None


def names() -> list[str]:
    """The groups of trials that stand where ours would."""
    here = place()
    parent = here and here.parent_for_trials()
    return [path.name.removeprefix(PREFIX) for path in parent.glob(f"{PREFIX}*")] if parent else []


def room_bytes() -> int | None:
    """What the groups that enclose us leave us to take, page cache counted as free; None where nothing limits us."""
    here = place()
    if not here:
        return None
    rooms = [_room_bytes(group, here.files) for group in here.chain()]
    return min((room for room in rooms if room is not None), default=None)


def _room_bytes(group: Path, files: Files) -> int | None:
    limit = limit_bytes(group, files)
    if limit is None:
        return None
    used = _words(group / files.usage)
    stat = _table(group / "memory.stat")
    return max(0, limit - int(used[0] if used else 0) + sum(stat.get(name, 0) for name in files.file))


def limit_bytes(group: Path, files: Files) -> int | None:
    """The limit set on a group itself, or None."""
    words = _words(group / files.limit)
    limit = int(words[0]) if words and words[0].isdigit() else None
    return limit if limit is not None and limit < _UNLIMITED_BYTES else None


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


def _table(path: Path) -> dict[str, int]:
    words = _words(path)
    return {name: int(value) for name, value in zip(words[::2], words[1::2], strict=False) if value.isdigit()}
