"""Runs that are read for pages: each once, however many look at it."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from stoker.dashboard.shelf import Following, Sources
from stoker.records.live import Live

if TYPE_CHECKING:
    from stoker.records.attributed import Course
    from stoker.records.diagnosis import Diagnosis

FRESH_S = 0.9
"""A picture this young is not taken again."""
FORGET_S = 120.0
MOST = 16
T = TypeVar("T")


class Once(Generic[T]):
    """Results that take long, kept for a few directories until these change; two who ask wait for one answer."""

    def __init__(self, make: Callable[[Path], T]) -> None:
        self._make = make
        self._kept: OrderedDict[Path, tuple[float, T]] = OrderedDict()
        self._locks: dict[Path, threading.Lock] = {}
        self._lock = threading.Lock()

    def ready(self, directory: Path) -> T | None:
        """What is there already."""
        with self._lock:
            found = self._kept.get(directory)
        return found[1] if found is not None and found[0] == _stamp(directory) else None

    def get(self, directory: Path) -> T:
        """What is there, or is made now."""
        with self._lock:
            own = self._locks.setdefault(directory, threading.Lock())
        with own:
            found = self.ready(directory)
            if found is not None:
                return found
            stamp = _stamp(directory)
            made = self._make(directory)
            with self._lock:
                self._kept[directory] = (stamp, made)
                while len(self._kept) > MOST:
                    old, _ = self._kept.popitem(last=False)
                    self._locks.pop(old, None)
            return made


def _stamp(directory: Path) -> float:
    try:
        return max((path.stat().st_mtime for path in directory.iterdir()), default=0.0)
    except OSError:
        return 0.0


class _Follower:
    """One live run."""

    def __init__(self, reader: Following) -> None:
        self.reader = reader
        self.lock = threading.Lock()
        self.used_s = self.looked_s = 0.0
        self.live: Live | None = None


class Readers:
    """Everything that pages read of runs."""

    def __init__(self, sources: Sources) -> None:
        self.reports: Once[tuple[Diagnosis, Course | None]] = Once(sources.diagnose)
        self._follow = sources.follow
        self._followers: dict[Path, _Follower] = {}
        self._lock = threading.Lock()

    def live(self, directory: Path) -> Live:
        """The run as it is now, read on from where it was left."""
        with self._lock:
            self._forget_old()
            one = self._followers.get(directory)
            if one is None:
                one = self._followers[directory] = _Follower(self._follow(directory))
            one.used_s = time.monotonic()
        with one.lock:
            if one.live is None or time.monotonic() - one.looked_s > FRESH_S:
                one.live = one.reader.look()
                while one.reader.behind:
                    one.live = one.reader.look()
                one.looked_s = time.monotonic()
            return one.live

    def _forget_old(self) -> None:
        now = time.monotonic()
        for directory in [path for path, one in self._followers.items() if now - one.used_s > FORGET_S]:
            del self._followers[directory]
