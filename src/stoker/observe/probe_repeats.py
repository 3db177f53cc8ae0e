"""Calls that come to the same when a sample is made again, given the same data: a filter before a random crop, say."""

import sys
import time
import zlib
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from stoker.observe.probe_text import is_users

SMALLEST_BYTES = 64
"""Less is a shape or a label, no data."""
LOOKED_AT = 4_096
"""Numbers of an array that are compared, evenly spread: noise, a shift or a flip changes nearly all of them."""
LARGER = 2
"""A result may be so many times as large as what it was made from; what is larger was decoded, and keeping that costs
more memory than the data."""
FOLLOWED_S = 5.0
"""How long calls are followed at most."""
DEEP = 2


@dataclass(slots=True)
class _Call:
    """One call that was given data: what it was given, when it began, and what inside it came to the same."""

    key: tuple[Any, ...]
    given_bytes: int
    began_s: float
    inside: dict[str, float] = field(default_factory=dict)


class Repeats:
    """A profile function for two makings of the same samples. `second` begins the second one.

    Of the user's own functions, and of those of libraries that they call, each outermost call that is given data and
    returns the same as in the first making counts with its time.
    """

    def __init__(self) -> None:
        self._until = time.perf_counter() + FOLLOWED_S
        self._looking_s = 0.0
        self._is_second = False
        self._came_to: dict[tuple[Any, ...], int] = {}
        """Of the first making: digests of results by function and digest of what it was given."""
        self._open: dict[FrameType, _Call] = {}
        self.places: dict[str, float] = {}
        """Of the second making: seconds by function."""

    @property
    def now_s(self) -> float:
        """A clock that stands still while arguments and results are looked at."""
        return time.perf_counter() - self._looking_s

    def second(self) -> None:
        """The same samples come once more."""
        self._is_second = True
        self._open.clear()

    def __call__(self, frame: FrameType, event: str, result: Any) -> None:
        """What `sys.setprofile` calls."""
        if event == "call":
            self._entered(frame)
        elif event == "return" and frame in self._open:
            self._returned(frame, self._open.pop(frame), result)

    def _entered(self, frame: FrameType) -> None:
        began = time.perf_counter()
        if began > self._until:
            sys.setprofile(None)
            return
        call = _met(frame)
        self._looking_s += time.perf_counter() - began
        if call is not None:
            call.began_s = self.now_s
            self._open[frame] = call

    def _returned(self, frame: FrameType, call: _Call, result: Any) -> None:
        ended = time.perf_counter()
        took_s = ended - self._looking_s - call.began_s
        size, digest = _digest(result)
        if self._is_second:
            is_same = SMALLEST_BYTES <= size <= LARGER * call.given_bytes and self._came_to.get(call.key) == digest
            around = self._around(frame)
            into = self.places if around is None else around.inside
            for place, seconds in {_place(frame): took_s}.items() if is_same else call.inside.items():
                into[place] = into.get(place, 0.0) + seconds
        else:
            self._came_to[call.key] = digest
        self._looking_s += time.perf_counter() - ended

    def _around(self, frame: FrameType) -> _Call | None:
        """The call inside which this one happened, if that was given data too."""
        at = frame.f_back
        while at is not None:
            if at in self._open:
                return self._open[at]
            at = at.f_back
        return None


def _met(frame: FrameType) -> _Call | None:
    """A call of the user's, or by the user, that is given data."""
    code, back = frame.f_code, frame.f_back
    if not is_users(code.co_filename) and not (back is not None and is_users(back.f_code.co_filename)):
        return None
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
    values = frame.f_locals
    given = [values.get(name) for name in code.co_varnames[:count] if name != "self"]
    size, digest = _digest(given)
    return _Call((code, digest), size, 0.0) if size >= SMALLEST_BYTES else None


def _digest(value: Any, depth: int = DEEP) -> tuple[int, int]:
    """The bytes of all data in a value, and a digest of it and of the plain values beside it."""
    if isinstance(value, (bytes, bytearray)):
        return len(value), zlib.crc32(value)
    if isinstance(value, (str, int, float, bool)) or value is None:
        return 0, hash(value)
    if isinstance(value, (list, tuple, dict)) and depth > 0:
        several = list(value.values()) if isinstance(value, dict) else list(value)[:64]
        parts = [_digest(one, depth - 1) for one in several]
        return sum(size for size, _ in parts), hash(tuple(digest for _, digest in parts))
    return _array(value)


def _array(value: Any) -> tuple[int, int]:
    """An array, or a tensor on the host."""
    if getattr(value, "is_cpu", False) and hasattr(value, "detach"):
        try:
            value = value.detach().numpy()
        except (RuntimeError, TypeError):
            return 0, 0  # numpy has no such type
    flat = getattr(value, "flat", None)
    if flat is None or not hasattr(value, "nbytes") or value.dtype.hasobject:
        return 0, 0
    step = max(value.size // LOOKED_AT, 1)
    return int(value.nbytes), hash((value.shape, zlib.crc32(flat[::step].tobytes())))


def _place(frame: FrameType) -> str:
    """The function, or the user's own line that called into a library."""
    code, back = frame.f_code, frame.f_back
    if is_users(code.co_filename) or back is None:
        return f"{code.co_filename}:{code.co_firstlineno} {code.co_qualname}"
    return f"{back.f_code.co_filename}:{back.f_lineno} {back.f_code.co_qualname}"
