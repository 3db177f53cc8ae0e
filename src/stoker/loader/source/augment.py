"""Where an image is cut and whether it is mirrored: numbers that follow from (seed, epoch, row) alone."""

from math import ceil, exp, log, sqrt
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from stoker.loader.source.blocks import Ints
from stoker.loader.source.interface import Place

Crop = Literal["center", "random"]
Box = tuple[int, int, int, int]
"""Top, left, height, width."""

_TRIES = 10
_AREA = (0.08, 1.0)
_RATIO = (3 / 4, 4 / 3)
_NUMBERS = 4 * _TRIES + 1
"""Uniform numbers for an image: area, ratio, top and left of each try, and one for the mirror."""

_GOLD = np.uint64(0x9E3779B97F4A7C15)


def draw(place: Place, rows: Ints) -> NDArray[np.float64]:
    """Uniform numbers in [0, 1) for each row, whichever batch it is in."""
    key = np.random.SeedSequence([place.seed, place.epoch]).generate_state(1, np.uint64)[0]
    with np.errstate(over="ignore"):
        base = _mix(rows.astype(np.uint64) * _GOLD + key)
        mixed = _mix(base[:, None] + np.arange(1, _NUMBERS + 1, dtype=np.uint64)[None] * _GOLD)
    found: NDArray[np.float64] = (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return found


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Scramble 64 bits (the finaliser of splitmix64)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def box(height: int, width: int, size: tuple[int, int], crop: Crop | None, numbers: Any) -> Box:
    """The part of an image that becomes the sample."""
    if crop is None:
        return 0, 0, height, width
    if crop == "random":
        for at in range(0, 4 * _TRIES, 4):
            area = height * width * (_AREA[0] + (_AREA[1] - _AREA[0]) * numbers[at])
            ratio = exp(log(_RATIO[0]) + (log(_RATIO[1]) - log(_RATIO[0])) * numbers[at + 1])
            h, w = round(sqrt(area / ratio)), round(sqrt(area * ratio))
            if 0 < h <= height and 0 < w <= width:
                return int(numbers[at + 2] * (height - h + 1)), int(numbers[at + 3] * (width - w + 1)), h, w
    h = min(height, max(1, round(width * size[0] / size[1])))
    w = min(width, max(1, round(height * size[1] / size[0])))
    return (height - h) // 2, (width - w) // 2, h, w


def is_mirrored(numbers: Any) -> bool:
    """Half of the images are."""
    return bool(numbers[-1] < 0.5)  # noqa: PLR2004


def least(full: int, part: int, target: int) -> int:
    """How large the whole image must be decoded, at least, for a part of it to be as large as its target."""
    return min(full, ceil(target * full / part))


def scaled(at: int, part: int, full: int, decoded: int) -> tuple[int, int]:
    """A part of an image, as start and stop, in an image that was decoded smaller."""
    if decoded == full:
        return at, at + part
    start = min(decoded - 1, at * decoded // full)
    return start, max(start + 1, min(decoded, round((at + part) * decoded / full)))
