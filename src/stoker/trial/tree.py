"""A process and all that descends from it: who is in it, and how to end every one of them.

The process must be a subreaper (`prctl.adopt_orphans`): then a descendant stays a descendant whatever becomes of its
parents, so whether a process belongs to the tree is settled when it is born.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

# A pid that was somebody else's can come back as one of ours; seldom enough to look again only this often.
_FORGET_S = 5.0
# The list of all processes is read when the kernel has given out a new pid, and this often in any case, for those that
# have ended and for containers in which the newest pid is made up.
_LIST_S = 0.5
# A process deep in the kernel (a dead network mount) cannot be killed; nobody should wait for it for ever.
UNKILLABLE_S = 20.0
_PAUSE_S = 0.005


@dataclass(frozen=True, slots=True)
class Process:
    """What /proc/PID/stat says; `born` tells two processes apart that had the same pid."""

    pid: int
    parent: int
    group: int
    born: int
    is_zombie: bool


def process(pid: int) -> Process | None:
    """The process of this pid, or None if it is gone."""
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    except OSError:
        return None
    try:
        text = os.read(fd, 4096)
    except OSError:
        return None
    finally:
        os.close(fd)
    fields = text[text.rfind(b")") + 2 :].split()  # a name may hold blanks and brackets
    return Process(pid, int(fields[1]), int(fields[2]), int(fields[19]), fields[0] == b"Z")


def all_pids() -> set[int]:
    """Every process that we can see."""
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}  # noqa: PTH208 - ten times a second


def newest_pid() -> bytes:
    """The pid that the kernel gave out last."""
    with open("/proc/loadavg", "rb", buffering=0) as file:  # noqa: PTH123
        return file.read(128).rsplit(None, 1)[1]


class Tree:
    """All descendants of `root`, which itself is not counted."""

    def __init__(self, root: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.root = root
        self.members: set[int] = set()
        self.seen: set[int] = set()
        self._others: set[int] = set()
        self._clock = clock
        self._forget_at = clock() + _FORGET_S
        self._list_at = clock()
        self._newest = b""

    def look(self) -> set[int]:
        """The pids of the tree now. Cheap: only pids that appeared since the last look are opened."""
        now, newest = self._clock(), newest_pid()
        if now < self._list_at and newest == self._newest:
            return self.members
        self._list_at, self._newest = now + _LIST_S, newest
        if now >= self._forget_at:
            self._others.clear()
            self._forget_at = now + _FORGET_S
        pids = all_pids()
        self.members &= pids
        self._others &= pids
        new = [found for pid in pids - self.members - self._others if (found := process(pid))]
        self.members |= _descendants(self.root, new, self.members)
        self._others.update(found.pid for found in new if found.pid not in self.members)
        self.seen |= self.members
        return self.members

    def look_again(self) -> list[Process]:
        """The processes of the tree now, trusting nothing that was seen before. Dear; for ending them."""
        self._list_at = self._clock()
        found = [one for pid in all_pids() if (one := process(pid))]
        self.members = _descendants(self.root, found, set())
        self.seen |= self.members
        return [one for one in found if one.pid in self.members]


def _descendants(root: int, found: Iterable[Process], known: set[int]) -> set[int]:
    """The pids among `found` that descend from the root or from a known member."""
    children: dict[int, list[int]] = {}
    for one in found:
        children.setdefault(one.parent, []).append(one.pid)
    members: set[int] = set()
    todo = [root, *known]
    while todo:
        for pid in children.pop(todo.pop(), []):
            members.add(pid)
            todo.append(pid)
    return members


def send(one: Process, number: int) -> None:
    """Signal exactly this process: not another one that took its pid in the meantime."""
    fd = _pidfd(one.pid)
    try:
        now = process(one.pid)
        if now is None or now.born != one.born:
            return
        with contextlib.suppress(OSError):
            if fd is None:
                os.kill(one.pid, number)
            else:
                signal.pidfd_send_signal(fd, number)
    finally:
        if fd is not None:
            os.close(fd)


def _pidfd(pid: int) -> int | None:
    """A handle on a process; None where it is gone, or where kernel or Python (conda's) are too old to give one."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def ask_to_end(tree: Tree) -> None:
    """Send SIGTERM to every process group of the tree, and wake those that are stopped so that they hear it."""
    for group in _groups(tree.look_again()):
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGTERM)
            os.killpg(group, signal.SIGCONT)


def freeze(tree: Tree, deadline: float) -> list[Process]:
    """Stop every member, until a look finds none that is not stopped: who is stopped cannot fork any more."""
    stopped: set[tuple[int, int]] = set()
    while True:
        members = [one for one in tree.look_again() if not one.is_zombie]
        fresh = [one for one in members if (one.pid, one.born) not in stopped]
        if not fresh or time.monotonic() > deadline:
            return members
        _send_all(fresh, signal.SIGSTOP)
        stopped.update((one.pid, one.born) for one in fresh)


def kill(tree: Tree, reap: Callable[[], None], before: Callable[[], None] = lambda: None) -> int:
    """End every member for certain and return how many could not be ended. `before` sees them stopped, once."""
    deadline = time.monotonic() + UNKILLABLE_S
    freeze(tree, deadline)
    before()
    while True:
        reap()
        members = tree.look_again()
        if not members or time.monotonic() > deadline:
            return len(members)
        _send_all(members, signal.SIGKILL)
        time.sleep(_PAUSE_S)


def _send_all(members: list[Process], number: int) -> None:
    """Signal the members and their process groups; a group's signal reaches also a child that is just being forked."""
    for group in _groups(members):
        with contextlib.suppress(OSError):
            os.killpg(group, number)
    for one in members:
        send(one, number)


def _groups(members: list[Process]) -> set[int]:
    """The members' process groups. The tree lives in sessions of its own, so that they hold nobody else."""
    return {one.group for one in members} - {os.getpgrp(), 0, 1}
