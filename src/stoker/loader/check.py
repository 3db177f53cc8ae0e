"""Arguments, checked where a user can still see them."""

from collections.abc import Sequence
from typing import Any

from stoker.errors import UsageError


def whole(name: str, value: Any, least: int) -> None:
    """Refuse what is not a whole number from `least` on."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise UsageError(f"{name} is {value!r}; expected a whole number from {least} on")


def one_of(name: str, value: Any, allowed: Sequence[Any]) -> None:
    """Refuse what is not one of a few values."""
    if not any(value is one or (value == one and type(value) is type(one)) for one in allowed):
        *others, last = (repr(one) for one in allowed)
        raise UsageError(f"{name} is {value!r}; expected {', '.join(others)} or {last}")
