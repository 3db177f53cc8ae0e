"""The global shuffle as a pure function of (seed, row): each row has a key, and rows are sorted by key.

Keys are a bijection of 64 bits, so no two rows share one, and whoever holds a row knows where it goes without asking.
"""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.uint64]

FILE_SHIFT = 40
"""Of text, row j of file i has number i · 2^40 + j, because nobody knows beforehand how many rows a file has."""

_DEAL = 21  # which draw the seed is for


def keys(seed: int, start: int, stop: int) -> Keys:
    """The keys of rows start … stop - 1."""
    words = np.random.SeedSequence([seed, _DEAL]).generate_state(2, np.uint64)
    found = np.arange(start, stop, dtype=np.uint64)
    found += words[0]
    _mix(found)
    found ^= words[1]
    _mix(found)
    return found


def owner(found: Keys, outputs: int) -> NDArray[np.int64]:
    """The output of each key: outputs share the range of keys evenly."""
    return (((found >> np.uint64(32)) * np.uint64(outputs)) >> np.uint64(32)).astype(np.int64)


def counts(seed: int, rows: int, outputs: int) -> NDArray[np.int64]:
    """How many rows each output gets."""
    total = np.zeros(outputs, np.int64)
    step = 1 << 22
    for start in range(0, rows, step):
        total += np.bincount(owner(keys(seed, start, min(rows, start + step)), outputs), minlength=outputs)
    return total


def runs(seed: int, rows: int, most: int) -> list[tuple[int, int]]:
    """Where each output's rows begin and end in the order of the keys; fewer than `most` if one would have no row."""
    outputs = most
    while not (found := counts(seed, rows, outputs)).all():
        outputs -= max(1, outputs // 16)
    return list(pairwise(np.concatenate([[0], np.cumsum(found)]).tolist()))


def _mix(x: Keys) -> None:
    """Scramble 64 bits in place (the finaliser of splitmix64)."""
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
