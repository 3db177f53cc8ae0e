"""What a stream's threads wait for, they wait for until the stream is closed: sources are shared, and go on."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_mine = threading.local()


class Hold:
    """Of one stream. Closing it wakes whoever waits on its behalf, and nobody else."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a garbage collection can close it from inside
        self._waiting: set[threading.Event] = set()
        self._closed = False

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """What this thread does now, it does for the stream."""
        before = getattr(_mine, "hold", None)
        _mine.hold = self
        try:
            yield
        finally:
            _mine.hold = before

    @contextmanager
    def waiting(self, event: threading.Event) -> Iterator[None]:
        """The event is set when the stream is closed, if not before."""
        with self._lock:
            self._waiting.add(event)
        if self._closed:
            event.set()
        try:
            yield
        finally:
            with self._lock:
                self._waiting.discard(event)

    def close(self) -> None:
        """Nobody needs anything any more. Safe to call twice."""
        self._closed = True
        with self._lock:
            waiting = list(self._waiting)
        for event in waiting:
            event.set()


_NOBODY = Hold()


def of_thread() -> Hold:
    """The hold that the calling thread works for; one that is never closed where there is no stream."""
    found: Hold | None = getattr(_mine, "hold", None)
    return found or _NOBODY
