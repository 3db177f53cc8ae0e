"""Ends what is left of a trial whose supervising process is gone. The supervisor does better; this is for its death.

Processes are found by the trial's name in their environment, which children inherit, and in its cgroup.
"""

import contextlib
import os
import signal
import time
import uuid
from pathlib import Path

from stoker.trial import cgroup
from stoker.trial.protocol import NAME_VARIABLE
from stoker.trial.shm import Segments
from stoker.trial.tree import UNKILLABLE_S, Process, all_pids, process, send

_PAUSE_S = 0.01


def new_name() -> str:
    """A name for a trial; it tells which process started it, so that it can be known later whether that one lives."""
    me = process(os.getpid())
    assert me is not None
    return f"{me.pid}-{me.born}-{uuid.uuid4().hex[:12]}"


def sweep(name: str, segments: Segments | None = None) -> int:
    """End every process of this trial, and remove what they held in /dev/shm; how many there were."""
    ended: set[int] = set()
    deadline = time.monotonic() + UNKILLABLE_S
    while time.monotonic() < deadline:
        group = cgroup.find(name)
        members = _members(name, group)
        if not members:
            if group is not None:
                group.remove()
            break
        for one in members:
            send(one, signal.SIGSTOP)
        ended.update(one.pid for one in members)
        if segments is not None:
            segments.scan(ended)
        for one in members:
            send(one, signal.SIGKILL)
        time.sleep(_PAUSE_S)
    if segments is not None:
        segments.remove_leaks(ended)
    return len(ended)


def sweep_orphans() -> int:
    """End the trials of tuners that are gone, which only a simultaneous SIGKILL of tuner and supervisor leaves."""
    names = {name for pid in all_pids() if (name := _name(pid))} | {name for name in cgroup.names() if _is_name(name)}
    return sum(sweep(name) for name in names if _starter_is_gone(name))


def _starter_is_gone(name: str) -> bool:
    pid, born, _ = name.split("-")
    starter = process(int(pid))
    return starter is None or starter.is_zombie or starter.born != int(born)


def _members(name: str, group: cgroup.Group | None) -> list[Process]:
    pids = group.pids() if group is not None else set()
    pids |= {pid for pid in all_pids() if _name(pid) == name}
    return [one for pid in pids if (one := process(pid)) and not one.is_zombie]


def _name(pid: int) -> str | None:
    """The trial that a process belongs to; the names of another container's processes say nothing here."""
    with contextlib.suppress(OSError):
        if Path(f"/proc/{pid}/ns/pid").readlink() != Path("/proc/self/ns/pid").readlink():
            return None
        for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if entry.startswith(f"{NAME_VARIABLE}=".encode()):
                value = entry.partition(b"=")[2].decode(errors="replace")
                return value if _is_name(value) else None
    return None


def _is_name(value: str) -> bool:
    parts = value.split("-")
    return len(parts) == 3 and parts[0].isdigit() and parts[1].isdigit() and parts[2].isalnum()  # noqa: PLR2004
