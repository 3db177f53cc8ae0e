"""Calls that turn text into integers, wherever they happen."""

import sys
import sysconfig
import time
from itertools import pairwise
from types import FrameType
from typing import Any, cast

SHORTEST_TEXT = 12
FEWEST_IDS = 3
MOST_IDS = 4
"""Ids for a character, at most: a tokenizer that does not know it gives its bytes."""
OFTEN = 3
"""From how many calls on it is noticed that all had the same text: the header of a file format, no data."""
FOLLOWED_S = 5.0
"""How long calls are followed at most: a look at each of a million would take longer than the calls."""

_LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))


def is_users(file: str) -> bool:
    """True for a file of the user's own."""
    return bool(file) and not file.startswith((*_LIBRARIES, "<")) and "stoker/observe" not in file


class Follower:
    """A profile function that times calls which turn text into integers.

    The outermost that are given text; and where none of these returns integers, the innermost of the user's own in
    which text was at hand: a data set that has the text itself and splits it in `__getitem__`. Many integers from
    little text, or from the same text again and again, came from somewhere else.
    """

    def __init__(self) -> None:
        self._until = time.perf_counter() + FOLLOWED_S
        self._spent: dict[str, float] = {}
        self._texts: list[int] = []
        self._open: dict[FrameType, float] = {}
        self._begun: dict[FrameType, float] = {}
        self._fed: dict[FrameType, tuple[int, int]] = {}
        """How many characters of text a call has had, and a digest of them."""

    @property
    def places(self) -> dict[str, float]:
        """Seconds by the place where it happened."""
        return {} if len(self._texts) >= OFTEN and len(set(self._texts)) == 1 else self._spent

    @property
    def seconds(self) -> float:
        """All of it."""
        return sum(self.places.values())

    @property
    def place(self) -> str | None:
        """Where most of it happened."""
        return max(self.places, key=lambda name: self.places[name], default=None)

    def __call__(self, frame: FrameType, event: str, result: Any) -> None:
        """What `sys.setprofile` calls."""
        if event == "call":
            now = time.perf_counter()
            if now > self._until:
                sys.setprofile(None)
            elif not self._open and (text := _taken(frame)) is not None:
                self._open[frame] = now
                self._feed([frame, *self._around(frame)], text)
            elif is_users(frame.f_code.co_filename):
                self._begun[frame] = now
        elif event == "c_call" and (text := _text(getattr(result, "__self__", None))) is not None:
            self._feed(self._around(frame), text)
        elif event == "return":
            self._returned(frame, result)

    def _feed(self, frames: list[FrameType], text: str | bytes) -> None:
        for frame in frames:
            characters, digest = self._fed.get(frame, (0, 0))
            self._fed[frame] = characters + len(text), hash((digest, text))

    def _returned(self, frame: FrameType, result: Any) -> None:
        given, own = self._open.pop(frame, None), self._begun.pop(frame, None)
        begun = own if given is None and frame in self._fed and not self._open else given
        characters, digest = self._fed.pop(frame, (0, 0))
        if begun is not None and result is not None and 0 < integers(result) <= MOST_IDS * characters:
            place = self._place(frame)
            self._spent[place] = self._spent.get(place, 0.0) + time.perf_counter() - begun
            self._texts.append(digest)
            for outer in self._around(frame):  # it is counted
                self._fed.pop(outer, None)

    def _place(self, frame: FrameType) -> str:
        """The function, or the user's own line that called into a library."""
        around = None if is_users(frame.f_code.co_filename) else next(iter(self._around(frame)), None)
        code, line = (frame.f_code, frame.f_code.co_firstlineno) if around is None else (around.f_code, around.f_lineno)
        return f"{code.co_filename}:{line} {code.co_qualname}"

    def _around(self, frame: FrameType) -> list[FrameType]:
        """The user's own calls that are under way, this one included."""
        found, at = [], cast("FrameType | None", frame)
        while at is not None:
            if at in self._begun:
                found.append(at)
            at = at.f_back
        return found


def _taken(frame: FrameType) -> str | bytes | None:
    """The first text among a call's arguments."""
    code = frame.f_code
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    values = frame.f_locals
    return next((text for name in names if (text := _text(values.get(name))) is not None), None)


def _text(value: Any) -> str | bytes | None:
    """Text; all of it, where there are several."""
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], (str, bytes)) and _text(value[0]):
        kind: Any = type(value[0])
        return cast("str | bytes", kind().join(one for one in value if type(one) is kind))
    if isinstance(value, bytes):
        is_text = len(value) >= SHORTEST_TEXT and value[:256].isascii() and b"\0" not in value[:256]
        return value if is_text else None
    if isinstance(value, str) and len(value) >= SHORTEST_TEXT and (" " in value or "\n" in value):
        return value
    return None


def integers(value: Any, depth: int = 2) -> int:
    """How many a tokenizer has returned, padding not counted: in a list, array or tensor, or in what holds one."""
    dtype = getattr(value, "dtype", None)
    if dtype is not None:
        name = str(dtype)  # of eight bits are pixels, not ids
        is_ids = ("int" in name or "long" in name) and "int8" not in name and getattr(value, "ndim", 0) > 0
        return _changes(value) if is_ids else 0
    if isinstance(value, (list, tuple)):
        if len(value) >= FEWEST_IDS and all(type(item) is int for item in value[:8]):
            return 1 + sum(bool(a != b) for a, b in pairwise(value))
        return (
            sum(integers(item, depth - 1) for item in value) if depth > 0 and value and _holds(value[0], depth) else 0
        )
    if isinstance(value, (str, bytes, int, float, bool)) or depth <= 0:
        return 0
    if hasattr(value, "values") and callable(value.values):
        return max((integers(item, depth - 1) for item in list(value.values())[:8]), default=0)
    return max(integers(getattr(value, name, None), 0) for name in ("ids", "input_ids"))


def _holds(value: Any, depth: int) -> bool:
    return integers(value, depth - 1) > 0


def _changes(ids: Any) -> int:
    """How often the value changes along its last dimension, and once for each row: padding is one value all along."""
    rows = ids.reshape(-1, ids.shape[-1])
    return int(rows.shape[0]) + int((rows[:, 1:] != rows[:, :-1]).sum())
