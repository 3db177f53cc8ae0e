"""Two things that a process costs while it does nothing, measured once at its end: a fork, and threads that spin."""

import ctypes
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from stoker.observe.recorder import clock

LOOK_S, LOOKS = 0.05, 3
WAIT_S, LONGEST_WAITS = 0.005, 200
SPLIT = 1 << 18
"""So many numbers are worth several threads to torch."""


def fork_s() -> float | None:
    """Seconds until a fork has returned: most of what a worker's start takes, and it grows with the process's memory.

    The child ends at once, and is one of the C library: what the script has asked to be called after a fork is not.
    None where workers are not forked.
    """
    if (multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]) != "fork":
        return None
    library = ctypes.PyDLL(None)
    fork, leave = library.fork, library._exit  # noqa: SLF001  C has its own habits
    began = clock()
    pid: int = fork()
    if not pid:
        leave(0)
    ended = clock()
    if pid < 0:
        return None
    _bury(pid)
    return (ended - began) / 1e9


def _bury(pid: int) -> None:
    """Wait for the child, which a library's own handler might keep; not for ever."""
    with suppress(ChildProcessError):  # the script lets the kernel wait
        for _ in range(LONGEST_WAITS):
            if os.waitpid(pid, os.WNOHANG)[0]:
                return
            time.sleep(WAIT_S)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def spun_s() -> float:
    """CPU seconds that torch's threads take after a piece of work, waiting for the next: nobody's work."""
    torch = sys.modules["torch"]
    if torch.get_num_threads() == 1:
        return 0.0
    numbers = torch.zeros(SPLIT)
    return max(_beside(lambda: numbers.add_(1)) for _ in range(LOOKS))


def _beside(work: Callable[[], object]) -> float:
    """What other threads take of the cores for a moment after it."""
    work()
    all_s, own_s = time.process_time(), time.thread_time()
    time.sleep(LOOK_S)
    return (time.process_time() - all_s) - (time.thread_time() - own_s)
