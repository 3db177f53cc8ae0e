"""How well rows are shuffled: pairs of one batch that share a block or a file, against a uniform shuffle."""

import numpy as np

from stoker.loader.source.blocks import Ints
from stoker.loader.source.interface import Source

_EVERY = 16
"""One batch of so many is looked at, so that looking costs nothing."""


def pairs_alike(labels: Ints) -> float:
    """The share of pairs, of all pairs of a batch, with equal labels."""
    counts = np.unique(labels, return_counts=True)[1].astype(np.float64)
    return float((counts * (counts - 1)).sum()) / (len(labels) * (len(labels) - 1))


class Quality:
    """Pair ratios over the batches seen. 1 is a uniform shuffle; the number of blocks (or files) is none at all."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._starts = source.file_starts()
        self._seen = 0
        self._alike: list[tuple[float, float]] = []

    def see(self, rows: Ints) -> None:
        """Look at a batch, now and then."""
        self._seen += 1
        if self._seen % _EVERY == 1 and len(rows) > 1:
            blocks = self._source.blocks.of(rows)
            files = np.searchsorted(self._starts, rows, side="right")
            self._alike.append((pairs_alike(blocks), pairs_alike(files)))

    def ratios(self) -> tuple[float | None, float | None]:
        """Same-block and same-file pairs ÷ what a uniform shuffle gives; None if that cannot be said."""
        if not self._alike:
            return None, None
        block, file = np.mean(self._alike, axis=0)
        sizes = np.diff(self._starts).astype(np.float64)
        rows = len(self._source)
        by_file = float((sizes * (sizes - 1)).sum()) / max(1, rows * (rows - 1))
        by_block = self._source.blocks.pairs()
        return (float(block / by_block) if by_block else None, float(file / by_file) if by_file else None)
