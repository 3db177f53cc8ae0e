"""An object of a store in pieces of one size: ranges of it, each piece brought once."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from stoker.loader.scratch import of_thread
from stoker.loader.source.manifest import Manifest
from stoker.loader.source.pieces import Pieces
from stoker.loader.source.tier import Tier

PIECE = 1 << 20
"""What is asked for at once, at most, of an object: of a shard, or a stack, only some of it is needed."""


class Object(NamedTuple):
    """An object of a volume, and its first piece."""

    row: int
    nbytes: int
    first: int

    def pieces(self, start: int, stop: int) -> range:
        """The pieces that hold a range of it."""
        return range(self.first + start // PIECE, self.first + -(-stop // PIECE))


def cut(listed: Manifest) -> tuple[Pieces, list[Object]]:
    """The pieces of all objects, and which of them are whose."""
    sizes: list[int] = listed.sizes.tolist()
    ranges = [(row, at, min(size, at + PIECE)) for row, size in enumerate(sizes) for at in range(0, size, PIECE)]
    firsts = [0, *itertools.accumulate(-(-size // PIECE) for size in sizes)]
    return Pieces.of(listed, ranges), [Object(row, size, firsts[row]) for row, size in enumerate(sizes)]


class Parts:
    """Ranges of one object; a piece that several of them lie in is taken once."""

    def __init__(self, tier: Tier, one: Object, most: int | None = None) -> None:
        """Of ranges that come in order, only the `most` latest pieces have to be kept."""
        self._tier, self._one, self._most = tier, one, most
        self._taken: dict[int, bytes] = {}

    def lacking(self, start: int, stop: int) -> list[int]:
        """The pieces of a range that were not taken yet."""
        return [piece for piece in self._one.pieces(start, stop) if piece not in self._taken]

    def read(self, start: int, stop: int) -> bytes:
        """The bytes of a range."""
        found = []
        for piece in self._one.pieces(start, stop):
            at = (piece - self._one.first) * PIECE
            found.append(self._piece(piece)[max(start - at, 0) : stop - at])
        return b"".join(found)

    def _piece(self, piece: int) -> bytes:
        if piece not in self._taken:
            if self._most is not None and len(self._taken) >= self._most:
                del self._taken[next(iter(self._taken))]
            self._taken[piece] = bytes(self._tier.take(piece, of_thread("read")))
        return self._taken[piece]


def soon(tier: Tier, ranges: Sequence[tuple[Parts, int, int]]) -> None:
    """All of these will be read."""
    tier.soon([piece for parts, start, stop in ranges for piece in parts.lacking(start, stop)])
