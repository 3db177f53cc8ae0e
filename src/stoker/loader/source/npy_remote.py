"""Shards of records in a store: a block is a range of rows of one shard, read when its window comes."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from stoker.errors import EmptyFileError
from stoker.loader.scratch import of_thread
from stoker.loader.source.blocks import Ints, SizedBlocks
from stoker.loader.source.header import Header, header_end, header_in
from stoker.loader.source.interface import Lease, Pick
from stoker.loader.source.manifest import short_digest
from stoker.loader.source.npy import NpySource
from stoker.loader.source.pieces import Pieces
from stoker.loader.source.runs import Memory
from stoker.loader.source.tier import OfTier, Store, Tier

_BYTE = np.dtype(np.uint8)
_HEAD_BYTES = 1 << 12
"""What nearly every header fits into."""


class _Rows(NamedTuple):
    """A block's rows in memory."""

    memory: torch.Tensor
    nbytes: int
    stored_bytes: int


class RemoteNpySource(OfTier, NpySource):
    """Use `stoker.open("s3://bucket/shards/*.npy")`."""

    holds_blocks = True

    def __init__(
        self,
        store: Store,
        *,
        columns: Sequence[str] | None = None,
        block_rows: int | None = None,
        on_error: Literal["raise", "skip"] = "raise",
    ) -> None:
        self.store = store
        self._tier = Tier(store, "rows of .npy")
        listed = store.listed
        addresses = [listed.address(row) for row in range(len(listed))]
        self._at_object = {address: row for row, address in enumerate(addresses)}
        heads = self._tier.ends(range(len(listed)), first_bytes=_HEAD_BYTES, needs=header_end, last=False)
        self._heads = dict(zip(addresses, heads, strict=True))
        super().__init__(addresses, columns=columns, block_rows=block_rows, on_error=on_error)
        self._heads = {}

    def fingerprint(self) -> dict[str, Any]:
        """As of local files, but for how rows fall into blocks, which the order follows."""
        found = super().fingerprint()
        return found | {"digest": short_digest(found["digest"], "blocks within shards")[:32]}

    def _look(self, path: str) -> tuple[Header, int]:
        head = self._heads[path]
        if not head:
            raise EmptyFileError(path, "the object is empty; expected a .npy header and rows")
        if isinstance(head, BaseException):
            raise head
        return header_in(path, head), int(self.store.listed.sizes[self._at_object[path]])

    def _map(self) -> None:
        """Cut every shard into blocks, none of which crosses into the next."""
        sizes, ranges = [], []
        for path, header, rows in self._shards:
            firsts = np.arange(0, rows, self._block_rows)
            counts = np.minimum(self._block_rows, rows - firsts)
            starts = header.offset + firsts * self._stride
            at = self._at_object[path]
            ranges += [(at, int(a), int(a + n * self._stride)) for a, n in zip(starts, counts, strict=True)]
            sizes.append(counts)
        self.blocks = SizedBlocks(np.concatenate(sizes))
        self._tier.lay_out(Pieces.of(self.store.listed, ranges))

    def enter(self, first: Ints, sizes: Ints) -> None:
        """Ask for a window's blocks."""
        self._tier.soon(self.blocks.of(first).tolist())

    def leave(self, first: Ints, sizes: Ints) -> None:
        """Nothing is mapped."""

    def load(self, block: int, lease: Lease) -> _Rows:
        """A block's rows, in memory that is used again."""
        data = self._tier.take(block, of_thread("read"))
        usual = self._block_rows * self._stride
        memory, _ = lease(usual, (), _BYTE)
        np.copyto(memory.numpy()[: len(data)], np.frombuffer(data, np.uint8))
        return _Rows(memory, len(data), len(data))

    def stack(self, loaded: Sequence[Any]) -> tuple[Ints, int, int]:
        """The address of each block, and the first and last of all."""
        good = [block.memory for block in loaded if isinstance(block, _Rows)]
        bases = [block.memory.data_ptr() if isinstance(block, _Rows) else 0 for block in loaded]
        low = min((memory.data_ptr() for memory in good), default=0)
        high = max((memory.data_ptr() + memory.numel() for memory in good), default=0)
        return np.array(bases, np.int64), low, high

    def _places(self, pick: Pick) -> tuple[Memory, Ints]:
        bases = np.concatenate([base for base, _, _ in pick.held])
        low = min(low for _, low, high in pick.held if high)
        begins: Ints = bases[pick.slot] + pick.inner * self._stride
        return Memory(low, max(high for _, _, high in pick.held)), begins
