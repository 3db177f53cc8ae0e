"""Memory that one thread reads or decodes into, over and over: fresh pages cost more than the copy into them."""

import threading

_mine = threading.local()


class Scratch:
    """A buffer that grows. What `room` returned before may be overwritten by what comes after."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def room(self, nbytes: int) -> memoryview:
        """Memory for so many bytes."""
        if len(self._bytes) < nbytes:
            self._bytes = bytearray(nbytes + nbytes // 4)  # a new one: somebody may still look at the old
        return memoryview(self._bytes)[:nbytes]


def of_thread(use: str) -> Scratch:
    """The calling thread's own, for one use."""
    found: Scratch | None = getattr(_mine, use, None)
    if found is None:
        found = Scratch()
        setattr(_mine, use, found)
    return found
