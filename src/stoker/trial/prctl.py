"""The two requests to Linux that Python has no name for."""

import ctypes
import os
import signal

# <linux/prctl.h>
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """From now on a descendant whose parent dies becomes this process's child, also after a double fork and setsid."""
    _request(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """The kernel kills this process when the thread that started it ends."""
    _request(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _request(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}): {os.strerror(code)}")
