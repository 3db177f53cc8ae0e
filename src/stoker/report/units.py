"""Seconds, bytes and shares as people read them. Conversion happens here and nowhere else."""

MINUTE, HOUR = 60.0, 3600.0


def seconds(value: float | None) -> str:
    """`0.0128` is `12.8 ms`."""
    if value is None:
        return "–"
    if value < 1e-3:  # noqa: PLR2004
        return f"{value * 1e6:.0f} µs"
    if value < 1:
        return f"{value * 1e3:.3g} ms"
    if value < 2 * MINUTE:
        return f"{value:.3g} s"
    if value < 2 * HOUR:
        return f"{value / MINUTE:.1f} min"
    return f"{value / HOUR:.1f} h"


def size(value: float | None) -> str:
    """`1536` is `1.5 KiB`."""
    if value is None:
        return "–"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:  # noqa: PLR2004
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def share(value: float | None) -> str:
    """`0.427` is `42.7 %`."""
    return "–" if value is None else f"{value * 100:.1f} %"


def rate(value: float | None, unit: str) -> str:
    """`1234.5` is `1,234 samples/s`."""
    if value is None:
        return "–"
    return f"{value:,.0f} {unit}/s" if value >= 100 else f"{value:.3g} {unit}/s"  # noqa: PLR2004


def number(value: float) -> str:
    """A plain number: whole above a thousand, three digits below."""
    return f"{value:,.0f}" if abs(value) >= THOUSAND else f"{value:.3g}"


THOUSAND = 1000
