"""What it takes to send a data set to a worker that is not forked: pickled here, unpickled there."""

import functools
import sys
from multiprocessing import reduction
from typing import Any

from stoker.observe.patches import Patches
from stoker.observe.recorder import Recorder, clock

SMALLEST_BYTES = 1 << 20


def install(recorder: Recorder, patches: Patches) -> None:
    """Time both ends; only what is large is noted."""
    patches.set(reduction, "dump", _dumping(reduction.dump, recorder))
    if "--multiprocessing-fork" in sys.argv:
        import pickle

        patches.set(pickle, "load", _loading(pickle.load, recorder))


def _dumping(original: Any, recorder: Recorder) -> Any:
    @functools.wraps(original)
    def dump(obj: Any, file: Any, *args: Any, **kwargs: Any) -> Any:
        start, before = clock(), file.tell()
        result = original(obj, file, *args, **kwargs)
        size = file.tell() - before
        if size >= SMALLEST_BYTES:
            recorder.note("pickled", bytes=size, seconds=(clock() - start) / 1e9)
        return result

    return dump


def _loading(original: Any, recorder: Recorder) -> Any:
    @functools.wraps(original)
    def load(*args: Any, **kwargs: Any) -> Any:
        start = clock()
        result = original(*args, **kwargs)
        recorder.note("unpickled", seconds=(clock() - start) / 1e9)
        return result

    return load
