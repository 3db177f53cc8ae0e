"""A function, timed: the wrapper that nearly all hooks are."""

import functools
import sys
from _thread import get_ident
from collections.abc import Callable
from typing import Any

from stoker.observe.doze import STILL
from stoker.observe.recorder import Recorder, clock
from stoker.records.observed import ARG, Kind


def spanned(original: Callable[..., Any], recorder: Recorder, kind: Kind, argument: int = 0) -> Callable[..., Any]:
    """The same function, its calls on the home thread written down as spans of `kind`."""
    home, put = recorder.home, recorder.put
    asleep = recorder.doze.asleep if kind in STILL else (0,)
    compiler = getattr(sys.modules.get("torch"), "compiler", None)
    compiling = getattr(compiler, "is_dynamo_compiling", bool)  # dynamo looks in here, and knows nothing of threads
    begin = kind << 1 | argument << ARG
    end = begin | 1

    @functools.wraps(original)
    def timed(*args: Any, **kwargs: Any) -> Any:
        if asleep[0] or compiling() or get_ident() != home[0]:
            return original(*args, **kwargs)
        put(clock())
        put(begin)
        try:
            return original(*args, **kwargs)
        finally:
            put(clock())
            put(end)

    return timed
