"""Garbage collection stands still while the stack of another thread is walked.

Up to Python 3.11 whatever is made may start a collection, a frame object too. A finalizer that lets go of the
interpreter then lets the other thread return from the very frame that is being described: what is left points
nowhere, and the script dies of SIGSEGV; or it hangs at its end, where the interpreter's list of threads was locked.
From 3.12 on a collection only starts between two instructions.
"""

import _thread
import gc
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

from stoker.observe.patches import Patches

COLLECTS_ANYWHERE = sys.version_info < (3, 12)


class Pause:
    """A lock under which nothing is collected. Scripts that set the collector wait for it, and find it as they left it.

        with pause:
            frame = sys._current_frames()[thread].f_back

    The thread that has it may take it again: a signal handler may want what it interrupted.
    """

    def __init__(self) -> None:
        self._lock = _thread.RLock()
        self._was_on = False
        self._off, self._on, self._is_on = gc.disable, gc.enable, gc.isenabled

    def install(self, patches: Patches) -> None:
        """Let the script's own calls wait while it lasts."""
        if COLLECTS_ANYWHERE:
            for name in ("disable", "enable", "isenabled"):
                patches.set(gc, name, self._after(getattr(gc, name)))

    def _after(self, original: Callable[[], Any]) -> Callable[[], Any]:
        @wraps(original)
        def wait() -> Any:
            with self._lock:
                return original()

        return wait

    def __enter__(self) -> None:
        self._lock.acquire()
        if COLLECTS_ANYWHERE:
            self._was_on = self._is_on()
            self._off()

    def __exit__(self, *_: object) -> None:
        if self._was_on:
            self._on()
        self._lock.release()

    def acquire(self) -> None:
        """Wait until nobody has it, and let nobody take it."""
        self._lock.acquire()

    def release(self) -> None:
        """Let others take it again."""
        self._lock.release()

    def after_fork(self) -> None:
        """In a forked child: whoever had it is not here."""
        self._lock = _thread.RLock()
