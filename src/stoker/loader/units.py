"""Sizes as people write them."""

import re

from stoker.errors import UsageError

_UNITS = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 1 << 10,
    "mi": 1 << 20,
    "gi": 1 << 30,
    "ti": 1 << 40,
}
_LEAST_BYTES = 1 << 20


def parse_bytes(text: int | str, name: str = "memory") -> int:
    """`256MiB`, `2GB` or a plain number, as bytes."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?\s*", str(text), re.IGNORECASE)
    if match is None or isinstance(text, bool) or match[2].lower() not in _UNITS:
        raise UsageError(f"{name} is {text!r}; expected a number of bytes, or one with a unit, such as 256MiB or 2GB")
    found = int(float(match[1]) * _UNITS[match[2].lower()])
    if found < _LEAST_BYTES:
        raise UsageError(f"{name} is {found} bytes; expected at least 1 MiB")
    return found
