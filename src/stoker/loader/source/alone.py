"""Writing beside other processes, and onto disks that are full."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from stoker.errors import DiskFullError


@contextmanager
def alone(path: Path, *, forget: bool = False) -> Iterator[None]:
    """One process of this machine at a time; with `forget` the file of the lock goes with the last one's work."""
    with path.open("w") as lock:
        # Without locks two may do the same work; each writes its own file and moves it, so that is only slower.
        with suppress(ImportError, OSError):
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
        if forget:
            path.unlink(missing_ok=True)


@contextmanager
def no_room(folder: Path, what: str) -> Iterator[None]:
    """Say where there is no room, and for what."""
    try:
        yield
    except (OSError, ValueError) as error:
        # tensorstore says it in words only
        full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        if full or any(words in str(error) for words in ("No space left", "File too large", "quota exceeded")):
            raise DiskFullError(
                f"no room for {what} in {folder}; free some, or name another directory with cache="
            ) from error
        raise
