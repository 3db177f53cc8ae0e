"""The files behind a batch, read with their pages dropped and then again: what the first touch of the data costs.

Only files that this process itself opened for reading or has mapped, only whole pages that are clean, and never a
write: the kernel drops what it can read again, and says by the bytes that came from storage whether it did.
"""

import os
from contextlib import suppress
from pathlib import Path

from stoker.observe.recorder import clock
from stoker.records.probes import Cold

PIECE_BYTES = 1 << 20
"""Files are read in pieces of this size; of a large file one piece."""
MOST_BYTES = 64 << 20
LONGEST_S = 1.0


def measure(names: tuple[str, ...]) -> Cold | None:
    """Cold and warm in turns, piece by piece; None if no file could be read."""
    size = disk = 0
    cold: list[float] = []
    warm: list[float] = []
    deadline = clock() + int(LONGEST_S * 1e9)
    for place, name in enumerate(names):
        if clock() > deadline or size > MOST_BYTES:
            break
        with suppress(OSError):
            file = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOATIME * _is_ours(name))
            try:
                read, first_s, again_s, stored = _piece(file, place)
            finally:
                os.close(file)
            if read:
                size, disk = size + read, disk + stored
                cold.append(first_s)
                warm.append(again_s)
    return Cold(len(cold), size, disk, tuple(cold), tuple(warm)) if cold else None


def _is_ours(name: str) -> bool:
    """Only a file's owner may read it without a trace in its time of access."""
    return Path(name).stat().st_uid == os.geteuid()


def _piece(file: int, place: int) -> tuple[int, float, float, int]:
    """Bytes, seconds cold, seconds warm, bytes from storage."""
    pieces = max(os.fstat(file).st_size // PIECE_BYTES, 1)
    start = (place * 7919 % pieces) * PIECE_BYTES  # not always the head of the file, which is read for its header too
    os.posix_fadvise(file, start, PIECE_BYTES, os.POSIX_FADV_DONTNEED)
    before, began = _from_storage(), clock()
    read = len(os.pread(file, PIECE_BYTES, start))
    cold, stored = clock(), _from_storage() - before
    os.pread(file, PIECE_BYTES, start)
    return read, (cold - began) / 1e9, (clock() - cold) / 1e9, stored


def _from_storage() -> int:
    """Bytes that this thread had fetched from storage; 0 where the kernel does not say."""
    with suppress(OSError, ValueError, IndexError), open("/proc/thread-self/io") as file:  # noqa: PTH123
        return int(file.read().split()[9])
    return 0
