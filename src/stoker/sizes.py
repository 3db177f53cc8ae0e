"""Sizes in bytes and durations in seconds, as people write them: `16GiB`, `1.5 GB`, `4096`; `90`, `90s`, `10m`."""

import re

from stoker.errors import UsageError

_UNITS = {
    "": 1,
    "b": 1,
    **{prefix: 1024**power for power, prefix in enumerate("kmgt", start=1)},  # as docker and systemd read `16G`
    **{f"{prefix}b": 1000**power for power, prefix in enumerate("kmgt", start=1)},
    **{f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgt", start=1)},
}
_TEXT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", re.ASCII)


_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([smh]?)\s*", re.ASCII)


def parse_seconds(text: str) -> float:
    """The seconds of a duration such as `90`, `90s`, `10m` or `1.5h`."""
    match = _DURATION.fullmatch(text)
    if match is None or float(match[1]) <= 0:
        raise UsageError(f"{text!r} is not a duration; expected something like 90s, 10m or 1.5h")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


def parse_bytes(text: int | str, name: str | None = None, *, least_bytes: int = 1) -> int:
    """The bytes that a text such as `16GiB` means; units of 1000 and of 1024 are kept apart.

    `name` is what the size is for, so that a refusal can say it.
    """
    match = _TEXT.fullmatch(str(text)) if not isinstance(text, bool) else None
    unit = _UNITS.get(match[2].lower()) if match else None
    size_bytes = int(float(match[1]) * unit) if match and unit else 0
    if size_bytes < 1:
        what = f"{name} is {text!r}, which is" if name else f"{text!r} is"
        raise UsageError(f"{what} not a size; expected a positive number and a unit, such as 16GiB, 800MB or 4096")
    if size_bytes < least_bytes:
        raise UsageError(f"{name or 'the size'} is {size_bytes} bytes; expected at least {format_bytes(least_bytes)}")
    return size_bytes


def format_bytes(size_bytes: float) -> str:
    """A size for people, in the largest unit of 1024 that leaves at least one."""
    for power, unit in enumerate(("B", "KiB", "MiB", "GiB")):
        if size_bytes < 1024 ** (power + 1):
            return f"{size_bytes / 1024**power:.{min(power, 1)}f} {unit}"
    return f"{size_bytes / 1024**4:.1f} TiB"
