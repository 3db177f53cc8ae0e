"""Batches taken from the loader before the loop asks for them, and handed to it afterwards, in order.

That is what makes an experiment invisible: taking them with nothing in between is *loader-only*, and the loop's steps
on them, while they lie ready, are *replay*. None is lost and none comes twice; an error comes where it would have come.
"""

import os
import resource
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from stoker.observe.recorder import clock
from stoker.records.probes import Drain

MOST_BYTES = 512 << 20
"""What may be held …"""
MOST_SHARE = 0.1
"""… and the share of free memory, and a quarter of what is free of /dev/shm."""
SHM = "/dev/shm"  # noqa: S108
SHM_SHARE = 0.25
DESCRIPTORS_SHARE = 0.5
"""Each tensor that a worker sent holds a file descriptor: the share of those still free that may be taken."""
MOST_PARTS = 20_000


@dataclass(frozen=True, slots=True)
class Held:
    """One batch that was taken, or the error that came in its place."""

    batch: Any
    error: BaseException | None = None

    def give(self) -> tuple[Any]:
        """What the loop gets."""
        if self.error is not None:
            raise self.error
        return (self.batch,)


@dataclass(slots=True)
class Room:
    """What may still be held."""

    size: float
    descriptors: float

    @classmethod
    def now(cls, workers: int) -> "Room":
        """As memory, shared memory and the limit of open files allow at this moment."""
        size = min(MOST_BYTES, MOST_SHARE * free_bytes())
        if not workers:
            return cls(size, float("inf"))
        try:
            stat = os.statvfs(SHM)
            size = min(size, SHM_SHARE * stat.f_bavail * stat.f_frsize)
            most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            left = most - len(os.listdir("/proc/self/fd"))  # noqa: PTH208  a path object for each would be waste
        except OSError:
            left = 256
        return cls(size, DESCRIPTORS_SHARE * left)

    def takes(self, batch: Any) -> bool:
        """True while another one like this fits."""
        size, shared = weight(batch)
        self.size -= size
        self.descriptors -= shared
        return self.size > size and self.descriptors > shared


def take(iterator: Any, original: Any, held: deque[Held], wanted: int, until_s: float, room: Room) -> list[int]:
    """Take up to `wanted` batches; the moments at which they came. Ends early at the deadline and when room is out."""
    came: list[int] = []
    deadline = clock() + int(until_s * 1e9)
    while len(came) < wanted and (clock() < deadline or len(came) < FEWEST):
        try:
            batch = original(iterator)
        except StopIteration:
            break
        except BaseException as error:  # noqa: BLE001  it is the loop's, at its place
            held.append(Held(None, error))
            break
        held.append(Held(batch))
        came.append(clock())
        if not room.takes(batch):
            break
    return came


FEWEST = 2
"""Fewer batches are no experiment, however long they take."""


def drained(came: list[int], ready: int, cpu_s: float, workers: int) -> Drain | None:
    """The rate of the loader alone: without the batches that may have been ready before.

    Slow workers deliver one batch each and then none for a while: over whole rounds of them, if there is one.
    """
    if not workers or len(came) < ready + 2:
        return None
    counted = len(came) - 1 - max(ready - 1, 0)
    counted -= counted % workers if counted > workers else 0
    first = len(came) - 1 - counted
    return Drain(counted, (came[-1] - came[first]) / 1e9, cpu_s * counted / len(came), workers)


def wait_until_idle(iterator: Any, longest_s: float) -> None:
    """Let the user's workers fill their queue, so that they do not compete with what is measured next."""
    queue = getattr(iterator, "_worker_result_queue", None)
    deadline = time.monotonic() + longest_s
    while queue is not None and time.monotonic() < deadline:
        try:
            ready = sum(1 for info in iterator._task_info.values() if len(info) > 1)  # noqa: SLF001
            if queue.qsize() + _pinned(iterator) + ready >= iterator._tasks_outstanding:  # noqa: SLF001
                return
        except (NotImplementedError, AttributeError):
            return
        time.sleep(0.01)


def _pinned(iterator: Any) -> int:
    """Batches that the pinning thread has passed on."""
    return iterator._data_queue.qsize() if getattr(iterator, "_pin_memory", False) else 0  # noqa: SLF001


def dismiss(iterator: Any) -> None:
    """End its workers, whatever they die of: one that is inside C++ code while it ends may well abort."""
    if getattr(iterator, "_worker_pids_set", False):  # torch would raise their deaths here, or wherever the script is
        from torch.utils.data._utils import signal_handling

        signal_handling._remove_worker_pids(id(iterator))  # type: ignore[attr-defined]  # noqa: SLF001
        iterator._worker_pids_set = False  # noqa: SLF001
    iterator._shutdown_workers()  # noqa: SLF001


# ---- what a batch weighs ---------------------------------------------------------------------------------


def parts(batch: Any) -> Iterator[Any]:
    """Everything in a batch that has bytes of its own."""
    left = [batch]
    for _ in range(MOST_PARTS):
        if not left:
            return
        part = left.pop()
        if hasattr(part, "nbytes") or isinstance(part, (bytes, str)):
            yield part
        elif isinstance(part, Mapping):
            left.extend(part.values())
        elif isinstance(part, (list, tuple)):
            left.extend(part)
        else:
            left.extend(getattr(part, "__dict__", {}).values())
            names = (name for kind in type(part).__mro__ for name in _slots(kind))
            left.extend(getattr(part, name, None) for name in names)


def _slots(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def weight(batch: Any) -> tuple[int, int]:
    """Bytes, and tensors in memory that is shared with a worker."""
    size = shared = 0
    for part in parts(batch):
        size += len(part) if isinstance(part, (bytes, str)) else int(part.nbytes)
        shared += bool(hasattr(part, "is_shared") and part.is_cpu and part.is_shared())
    return size, shared


def first_share(batches: list[Any]) -> float | None:
    """Bytes of the first batch ÷ those of the others, on average; None where nothing can be weighed."""
    first, *others = [weight(batch)[0] for batch in batches] or [0]
    return first * len(others) / sum(others) if first and sum(others) else None


def free_bytes() -> float:
    """Memory that can be had without pushing anything out."""
    try:
        with open("/proc/meminfo") as file:  # noqa: PTH123
            for line in file:
                if line.startswith("MemAvailable"):
                    return float(line.split()[1]) * 1024
    except OSError:
        pass
    return float(1 << 30)
