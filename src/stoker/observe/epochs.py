"""How many epochs a script means to run: looked up in its own variables, because no loop says so from outside."""

import re
from collections.abc import Iterator
from types import FrameType
from typing import Any

NAME = re.compile(r"^(?:(?:n|num|max|total|nb)_?)?(?:train_?)?epochs?(?:_?(?:num|count|max|total))?$", re.IGNORECASE)
NOT_A_COUNT = re.compile(r"^(?:train_?)?epoch$", re.IGNORECASE)
"""`epoch` by itself is the loop's variable."""
HOLDERS = {"args", "cfg", "config", "opt", "opts", "options", "hparams", "params", "settings", "self", "trainer"}
MOST_FRAMES = 12


def planned(frame: FrameType | None) -> tuple[int, str] | None:
    """The number of epochs and the name of the variable, from this frame outwards."""
    for _ in range(MOST_FRAMES):
        if frame is None:
            return None
        for scope in (frame.f_locals, frame.f_globals):
            found = next(_counts(scope), None)
            if found is not None:
                return found
        frame = frame.f_back
    return None


def _counts(scope: dict[str, Any]) -> Iterator[tuple[int, str]]:
    yield from _plain(scope)
    for holder in HOLDERS & scope.keys():
        value = scope[holder]
        inner = value if isinstance(value, dict) else getattr(value, "__dict__", {})
        yield from ((count, f"{holder}.{name}") for count, name in _plain(inner))


def _plain(scope: dict[str, Any]) -> Iterator[tuple[int, str]]:
    for name, value in list(scope.items()):
        if isinstance(name, str) and NAME.match(name) and not NOT_A_COUNT.match(name) and _is_count(value):
            yield int(value), name


def _is_count(value: Any) -> bool:
    if isinstance(value, float):
        return value >= 1 and value.is_integer()
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
