"""The sequence of samples of an epoch: a pure function of (seed, epoch, position).

Blocks are permuted; consecutive permuted blocks form a window; the rows of a window are permuted together. Window k
follows from (seed, epoch, k) alone, so that resuming costs one window, and nothing grows with the number of rows.

    order = Order(EvenBlocks(1_000_000_000, 64), window_blocks=4096, seed=0)
    rows = order.epoch(3).window(17).rows(0, 750)
"""

from functools import lru_cache
from math import isqrt
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from stoker.loader.source.blocks import Blocks, EvenBlocks, Ints

SORTED_MOST = 1 << 22
"""Up to so many items a permutation is a sorted array of random keys (32 MiB); beyond, it is computed by position."""

BUCKET_GROUPS = 64
"""So many batches are sorted by length together."""

_CHUNK = 1 << 16
_ROUNDS = 8
_BLOCKS, _ROWS, _GROUPS = 1, 2, 3  # which permutation a key is for


class Permutation(Protocol):
    """A permutation of 0 … n - 1."""

    def take(self, start: int, stop: int) -> Ints:
        """The items at positions start … stop - 1."""

    def find(self, item: int) -> int:
        """The position of an item."""


class Identity:
    """Nothing moves."""

    def take(self, start: int, stop: int) -> Ints:
        """The items at positions start … stop - 1."""
        return np.arange(start, stop)

    def find(self, item: int) -> int:
        """The position of an item."""
        return item


class Given:
    """A permutation that somebody else computed."""

    def __init__(self, items: Ints) -> None:
        self._items = items

    def take(self, start: int, stop: int) -> Ints:
        """The items at positions start … stop - 1."""
        return self._items[start:stop]

    def find(self, item: int) -> int:
        """The position of an item."""
        return int(np.flatnonzero(self._items == item)[0])


class Sorted(Given):
    """A uniformly random permutation: items sorted by random keys."""

    def __init__(self, n: int, key: NDArray[np.uint64]) -> None:
        # Philox's raw stream is the same in every numpy release. The item stands in a key's low bits: keys are then
        # unique, so that every sort gives the same result on every machine.
        mask = np.uint64((1 << max(1, (n - 1).bit_length())) - 1)
        keys = np.random.Philox(key=key).random_raw(n)
        keys &= ~mask
        keys |= np.arange(n, dtype=np.uint64)
        keys.sort()
        keys &= mask
        super().__init__(keys.view(np.int64))


class Computed:
    """A pseudo-random permutation without memory: a Feistel network over pairs (low, high) with low + a·high = item.

    The domain a·b is barely larger than n; an item that falls outside goes through the network again.
    """

    def __init__(self, n: int, key: NDArray[np.uint64]) -> None:
        self.n = n
        self._a = isqrt(n - 1) + 1
        self._b = -(-n // self._a)
        self._keys = np.random.Philox(key=key).random_raw(_ROUNDS)
        self._chunk = lru_cache(maxsize=4)(self._compute)

    def take(self, start: int, stop: int) -> Ints:
        """The items at positions start … stop - 1."""
        chunks = range(start // _CHUNK, -(-stop // _CHUNK))
        parts = [self._chunk(c)[max(0, start - c * _CHUNK) : stop - c * _CHUNK] for c in chunks]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def find(self, item: int) -> int:
        """The position of an item."""
        at = np.array([item], np.uint64)
        while True:
            at = self._pass(at, backwards=True)
            if at[0] < self.n:
                return int(at[0])

    def _compute(self, chunk: int) -> Ints:
        items = np.arange(chunk * _CHUNK, min(self.n, (chunk + 1) * _CHUNK), dtype=np.uint64)
        items = self._pass(items)
        while len(outside := np.flatnonzero(items >= self.n)):
            items[outside] = self._pass(items[outside])
        return items.view(np.int64)

    def _pass(self, items: NDArray[np.uint64], *, backwards: bool = False) -> NDArray[np.uint64]:
        a, b = np.uint64(self._a), np.uint64(self._b)
        high, low = np.divmod(items, a)
        for i in reversed(range(_ROUNDS)) if backwards else range(_ROUNDS):
            moved, other, size = (low, high, a) if i % 2 == 0 else (high, low, b)
            step = _mix(other + self._keys[i]) % size
            moved += size - step if backwards else step
            moved %= size
        return low + a * high


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Scramble 64 bits (the finaliser of splitmix64)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _permutation(n: int, *key: int) -> Permutation:
    seeds = np.random.SeedSequence([part & 0xFFFF_FFFF_FFFF_FFFF for part in key])
    words = seeds.generate_state(2, np.uint64).astype(np.uint64, copy=False)
    return Sorted(n, words) if n <= SORTED_MOST else Computed(n, words)


class Window:
    """The blocks mixed together at a time, and the order of their rows."""

    def __init__(
        self, key: tuple[int, int, int], start: int, blocks: Ints, table: Blocks, permutation: Permutation | None
    ) -> None:
        self.key = key
        """Seed, epoch and number: what it follows from."""
        self.start = start
        """The epoch's position at which the window begins."""
        self.blocks = blocks
        self.first = table.first(blocks)
        self.sizes = table.sizes(blocks)
        self._ends = np.cumsum(self.sizes)
        self._begins = self._ends - self.sizes
        self.stop = start + int(self._ends[-1])
        self._even = table.size if isinstance(table, EvenBlocks) else 0
        self._permutation: Permutation = permutation or Identity()

    def place(self, start: int, stop: int) -> tuple[Ints, Ints]:
        """For the epoch's positions start … stop - 1: which block of the window, and which row inside it."""
        local = self._permutation.take(start - self.start, stop - self.start)
        if self._even:
            slot = local // self._even
            return slot, local - slot * self._even
        slot = np.searchsorted(self._ends, local, side="right")
        return slot, local - self._begins[slot]

    def bucket(self, lengths: Ints, rows: int) -> None:
        """Bring rows of like length together, in groups of `rows` that begin at multiples of it in the epoch.

        `lengths` are those of the window's rows, in order. A run of groups is sorted by length, then its groups are
        permuted: which rows meet follows from the order before, and from their lengths.
        """
        local = self._permutation.take(0, self.stop - self.start).copy()
        head = -self.start % rows
        groups = max(0, len(local) - head) // rows
        for first in range(0, groups, BUCKET_GROUPS):
            count = min(BUCKET_GROUPS, groups - first)
            part = slice(head + first * rows, head + (first + count) * rows)
            ranked = local[part][np.argsort(lengths[part], kind="stable")].reshape(count, rows)
            local[part] = ranked[_permutation(count, *self.key, _GROUPS, first).take(0, count)].ravel()
        self._permutation = Given(local)

    def rows(self, start: int, stop: int) -> Ints:
        """The rows at the epoch's positions start … stop - 1."""
        if len(self.blocks) == 1:
            alone: Ints = self._permutation.take(start - self.start, stop - self.start) + self.first[0]
            return alone
        slot, inner = self.place(start, stop)
        return self.first[slot] + inner


class Epoch:
    """One epoch's windows."""

    def __init__(self, order: "Order", number: int) -> None:
        self.number = number
        self._order = order
        table = order.blocks
        self._blocks = _permutation(table.count, order.seed, number, _BLOCKS) if order.shuffle else Identity()
        if isinstance(table, EvenBlocks):
            self._last = self._blocks.find(table.count - 1)
        else:
            sizes = table.sizes(self._blocks.take(0, table.count))
            windows = np.add.reduceat(sizes, np.arange(0, table.count, order.window_blocks))
            self._starts = np.concatenate([[0], np.cumsum(windows)])

    def start(self, window: int) -> int:
        """The position at which a window begins."""
        table, first = self._order.blocks, window * self._order.window_blocks
        if isinstance(table, EvenBlocks):
            return first * table.size - (table.missing if self._last < first else 0)
        return int(self._starts[window])

    def find(self, position: int) -> int:
        """The window that holds a position."""
        table = self._order.blocks
        if not isinstance(table, EvenBlocks):
            return int(np.searchsorted(self._starts, position, side="right")) - 1
        window = position // (self._order.window_blocks * table.size)
        return window + 1 if window + 1 < self._order.windows and self.start(window + 1) <= position else window

    def window(self, index: int) -> Window:
        """Window number `index`, computed from (seed, epoch, index) alone."""
        order = self._order
        first = index * order.window_blocks
        blocks = self._blocks.take(first, min(first + order.window_blocks, order.blocks.count))
        if isinstance(order.blocks, EvenBlocks) and order.blocks.missing and order.shuffle:
            # The short block goes last, so that dividing by the block size finds every row's block.
            blocks = np.concatenate(
                [blocks[blocks != order.blocks.count - 1], blocks[blocks == order.blocks.count - 1]]
            )
        rows = int(order.blocks.sizes(blocks).sum())
        mixed = _permutation(rows, order.seed, self.number, _ROWS, index) if order.shuffle else None
        return Window((order.seed, self.number, index), self.start(index), blocks, order.blocks, mixed)


class Order:
    """All epochs of a table of blocks. `window_blocks` blocks are mixed at a time; without shuffle, none are."""

    def __init__(self, blocks: Blocks, *, window_blocks: int, seed: int = 0, shuffle: bool = True) -> None:
        self.blocks = blocks
        self.window_blocks = min(window_blocks, blocks.count)
        self.windows = -(-blocks.count // self.window_blocks)
        self.seed = seed
        self.shuffle = shuffle
        self.epoch = lru_cache(maxsize=3)(self._epoch)

    def _epoch(self, number: int) -> Epoch:
        return Epoch(self, number)
