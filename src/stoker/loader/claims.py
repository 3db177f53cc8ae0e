"""Which objects a stream downloads, known to all processes of a machine."""

import ctypes
import errno
import fcntl
import os
import struct
import threading
from pathlib import Path

# Both calls take a microsecond. Through the usual modules they give the interpreter's lock away, and with several
# threads at work each of them then waits for it longer than a small object's share of the download takes.
_libc = ctypes.PyDLL(None, use_errno=True) if hasattr(fcntl, "F_OFD_SETLK") else None
if _libc is not None:
    _libc.fcntl.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_char_p)
    _libc.lseek.argtypes, _libc.lseek.restype = (ctypes.c_int, ctypes.c_long, ctypes.c_int), ctypes.c_long

_TAKEN = (errno.EAGAIN, errno.EACCES)


class Claims:
    """Locks on single bytes of one file. The system takes them back when a process ends, however it ends."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._lock = threading.Lock()
        self._held: set[str] = set()

    def take(self, name: str) -> bool:
        """True if nobody else downloads this object, in this stream or another."""
        with self._lock:
            if name in self._held or not self._set(name, fcntl.F_WRLCK):
                return False
            self._held.add(name)
            return True

    def release(self, name: str) -> None:
        """Let others have it."""
        with self._lock:
            self._held.discard(name)
            self._set(name, fcntl.F_UNLCK)

    def _set(self, name: str, kind: int) -> bool:
        """False if somebody has it. A file system without locks says neither: better an object twice than none."""
        at = int(name[:15], 16)
        if self._file < 0:
            return True
        if _libc is not None:  # a lock that belongs to this object, not to the process
            how = struct.pack("hhqqi4x", kind, os.SEEK_SET, at, 1, 0)
            return not _libc.fcntl(self._file, fcntl.F_OFD_SETLK, how) or ctypes.get_errno() not in _TAKEN
        try:
            fcntl.lockf(self._file, fcntl.LOCK_UN if kind == fcntl.F_UNLCK else fcntl.LOCK_EX | fcntl.LOCK_NB, 1, at)
        except OSError as error:
            return error.errno not in _TAKEN
        return True

    def close(self) -> None:
        """Give all of them back."""
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1


def position(file: int, whence: int = os.SEEK_CUR) -> int:
    """Where an open file is, or where its end is, to which it moves."""
    return os.lseek(file, 0, whence) if _libc is None else int(_libc.lseek(file, 0, whence))
