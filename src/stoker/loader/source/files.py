"""Several small files by one call without the GIL: for each of them alone, threads would wait for each other."""

import errno
import os
from collections.abc import Sequence

import numpy as np

from stoker.loader.source.blocks import Ints
from stoker.loader.source.runs import compiled

_read_files = compiled("stoker_files", 5)


def read_files(paths: Sequence[str], rooms: Ints, out: memoryview) -> list[int]:
    """Read at most `rooms` bytes of each file, one after the other into `out`: how many came, or minus an errno."""
    if len(out) < rooms.sum():
        raise ValueError(f"{len(out)} bytes of room; expected {rooms.sum()}")
    names = b"".join(os.fsencode(path) + b"\0" for path in paths)
    if _read_files is None or names.count(0) != len(paths):
        starts = np.cumsum(rooms) - rooms
        return [_read(path, out[start : start + room]) for path, start, room in zip(paths, starts, rooms, strict=True)]
    rooms, got = np.ascontiguousarray(rooms, np.int64), np.empty(len(paths), np.int64)
    place = np.frombuffer(out, np.uint8)
    named = np.frombuffer(names, np.uint8)
    _read_files(named.ctypes.data, rooms.ctypes.data, len(paths), place.ctypes.data, got.ctypes.data)
    return [int(one) for one in got]


def _read(path: str, room: memoryview) -> int:
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        return -(error.errno or errno.EIO)
    except ValueError:  # a zero in the name
        return -errno.ENOENT
    got = 0
    try:
        while got < len(room) and (more := os.readv(file, [room[got:]])):
            got += more
    except OSError as error:
        return -(error.errno or errno.EIO)
    finally:
        os.close(file)
    return got
