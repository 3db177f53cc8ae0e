"""Page cache in the same state for both sides: the files that a run reads are dropped from it before each run."""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

MOST_FILES = 200_000


def named_files(command: Sequence[str]) -> Iterator[Path]:
    """Files and folders that the command itself mentions: data that C code opens is not seen otherwise."""
    for word in command[1:]:
        path = Path(word.rpartition("=")[2])
        with suppress(OSError):
            if path.is_dir():
                yield from (file for file in path.rglob("*") if file.is_file())
            elif path.is_file():
                yield path


def drop(files: Iterable[Path]) -> int:
    """Drop the clean pages of these files; how many were dropped. What another process maps stays."""
    dropped = 0
    for path in files:
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fdatasync(descriptor)  # dirty pages are not dropped
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                dropped += 1
            finally:
                os.close(descriptor)
        if dropped >= MOST_FILES:
            break
    return dropped
