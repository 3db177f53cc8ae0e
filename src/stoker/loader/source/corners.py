"""Where patches are cut: pure functions of (seed, epoch, volume, group), the same on every machine.

Patches of a group lie near each other, so that what is read for one serves the others. Yet each corner by itself is
uniform: the group's anchor is, and a symmetric shift, reflected at the borders, keeps it so.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stoker.loader.source.blocks import Ints

_SPREAD = 4
"""Corners of a group lie within ± 1/4 of the patch around the anchor."""

_PATCHES, _FOREGROUND = 11, 12  # which draw a key is for


def _draws(count: int, *key: int) -> NDArray[np.uint64]:
    seeds = np.random.SeedSequence([part & 0xFFFF_FFFF_FFFF_FFFF for part in key])
    return np.random.Philox(key=seeds.generate_state(2, np.uint64)).random_raw(count)


def _below(draws: NDArray[np.uint64], limits: Ints) -> Ints:
    """Whole numbers from 0 to limit - 1; with 64 bits the modulo's bias is beyond measuring."""
    return (draws % limits.astype(np.uint64)).astype(np.int64)


def _fold(at: Ints, last: Ints) -> Ints:
    """Reflect what lies below 0 or above `last`."""
    at = np.where(at < 0, -1 - at, at)
    return np.where(at > last, 2 * last + 1 - at, at)


def _spread(draws: NDArray[np.uint64], anchor: Ints, last: Ints, patch: Ints) -> Ints:
    reach = np.minimum(patch // _SPREAD, last)
    return _fold(anchor + _below(draws, 2 * reach + 1) - reach, last)


def draw(
    patch: Sequence[int],
    shape: Sequence[int],
    count: int,
    key: Sequence[int],
    foreground: Ints | None = None,
    share: float = 0.0,
) -> Ints:
    """The corners of a group of `count` patches. `key` is (seed, epoch, volume, group).

    With probability `share` the whole group is drawn so that every patch holds one of the `foreground` voxels.
    """
    size, last = np.array(patch), np.array(shape) - np.array(patch)
    axes = len(size)
    draws = _draws(axes * (count + 1) + 2, *key, _PATCHES)
    wide = draws[2 + axes :].reshape(count, axes)
    first = draws[2 : 2 + axes]
    if foreground is not None and len(foreground) and float(draws[0] >> np.uint64(11)) / (1 << 53) < share:
        voxel = foreground[int(draws[1] % np.uint64(len(foreground)))]
        inside = _spread(wide, _below(first, size), size - 1, size)
        found: Ints = np.clip(voxel - inside, 0, last)
        return found
    return _spread(wide, _below(first, last + 1), last, size)


def grid(patch: Sequence[int], shape: Sequence[int]) -> Ints:
    """Corners of patches that cover a volume, line after line; the last ones of an axis end at its border."""
    axes = [
        np.unique(np.minimum(np.arange(0, side, part), side - part)) for part, side in zip(patch, shape, strict=True)
    ]
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(axes))


def reach(patch: Sequence[int], shape: Sequence[int]) -> Ints:
    """The largest box that a group can need."""
    size, last = np.array(patch), np.array(shape) - np.array(patch)
    found: Ints = size + 2 * np.minimum(size // _SPREAD, last)
    return found


def sample_voxels(found: Ints, most: int) -> Ints:
    """At most `most` of these positions, each as likely as any other, the same ones each time."""
    if len(found) <= most:
        return found
    keys = _draws(1, _FOREGROUND)[0]
    mixed = found.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) ^ keys
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return found[np.sort(np.argpartition(mixed, most)[:most])]
