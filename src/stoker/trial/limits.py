"""How much a trial may take, settled before it starts: from what is free now, or from what the user allows."""

import os

import psutil

from stoker.errors import UnsafeError
from stoker.records.tuning import Limits
from stoker.sizes import format_bytes
from stoker.trial import cgroup, shm

# The part of what is free now that a trial may take. The rest is more than memory bandwidth can fill between two looks
# of the watch: 20 % of 24 GiB in a tenth of a second would be 48 GiB/s.
FREE_SHARE = 0.8


def free_bytes() -> int:
    """What a new process could take now: the machine's available memory, or less if a cgroup around us has less."""
    machine_bytes = int(psutil.virtual_memory().available)
    room_bytes = cgroup.room_bytes()
    return machine_bytes if room_bytes is None else min(machine_bytes, room_bytes)


def free_shm_bytes() -> int | None:
    """What /dev/shm can still hold; None where there is no such thing."""
    if not shm.DIRECTORY.is_dir():
        return None
    stat = os.statvfs(shm.DIRECTORY)
    return stat.f_bavail * stat.f_frsize


def choose(
    max_ram_bytes: int | None = None,
    *,
    device_bytes: int | None = None,
    seconds: float | None = None,
    processes: int | None = None,
) -> Limits:
    """The limits of a trial that starts now: 80 % of what is free in RAM and /dev/shm, or less if so asked.

    A `max_ram_bytes` above what is free is refused: the machine would have to swap or to kill.
    """
    free = free_bytes()
    if max_ram_bytes is not None and max_ram_bytes > free:
        raise UnsafeError(
            f"--max-ram allows {format_bytes(max_ram_bytes)}, but {format_bytes(free)} are free now; "
            f"allow less, or leave it out to use {FREE_SHARE:.0%} of what is free"
        )
    host_bytes = max_ram_bytes if max_ram_bytes is not None else int(FREE_SHARE * free)
    free_shm = free_shm_bytes()
    shm_bytes = None if free_shm is None else min(host_bytes, int(FREE_SHARE * free_shm))
    return Limits(host_bytes, shm_bytes, device_bytes, seconds, processes)


def refusal(
    limits: Limits,
    *,
    host_bytes: int | None = None,
    shm_bytes: int | None = None,
    device_bytes: int | None = None,
) -> str | None:
    """Why a trial that is predicted to take this much is unsafe to start; None if it is safe, as far as predicted."""
    rows = [
        ("RAM", host_bytes, limits.host_bytes),
        (str(shm.DIRECTORY), shm_bytes, limits.shm_bytes),
        ("device memory", device_bytes, limits.device_bytes),
    ]
    for name, predicted, allowed in rows:
        if predicted is not None and allowed is not None and predicted > allowed:
            return (
                f"predicted to take {format_bytes(predicted)} of {name}, {format_bytes(allowed)} allowed: not started"
            )
    return None
