"""What the loader needs to know of a kind of data: its blocks, its fields, and how to gather rows into buffers."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import torch

from stoker.errors import DataError
from stoker.loader.source.blocks import Blocks, Ints


class Ragged(NamedTuple):
    """Rows of different lengths: row i is `values[offsets[i]:offsets[i + 1]]`."""

    values: torch.Tensor
    offsets: torch.Tensor


class Padded(NamedTuple):
    """Rows of different lengths, filled up to the longest: row i is `values[i, :lengths[i]]`."""

    values: torch.Tensor
    lengths: torch.Tensor


Batch = dict[str, Any]
"""Field name → tensor (or a list, for text)."""


def split(batch: Batch, sizes: Sequence[int]) -> list[Batch]:
    """The batch as several, of so many rows each, in the same memory. Fields that share offsets go on sharing them."""
    ends = list(accumulate(sizes))
    cuts: dict[int, list[tuple[int, int, torch.Tensor]]] = {}
    fields: list[Sequence[Any]] = []
    for value in batch.values():
        if isinstance(value, torch.Tensor):
            fields.append(value.split(list(sizes)))
        elif isinstance(value, Ragged):
            if id(value.offsets) not in cuts:
                cuts[id(value.offsets)] = _cuts(value.offsets, ends)
            fields.append([Ragged(value.values[low:high], own) for low, high, own in cuts[id(value.offsets)]])
        else:
            fields.append([value[end - size : end] for end, size in zip(ends, sizes, strict=True)])
    return [dict(zip(batch, parts, strict=True)) for parts in zip(*fields, strict=True)]


def _cuts(offsets: torch.Tensor, ends: Sequence[int]) -> list[tuple[int, int, torch.Tensor]]:
    """For each of the batches: where its values begin and end, and offsets of its own."""
    starts = [0, *ends[:-1]]
    at = offsets[[0, *ends]].tolist()
    return [(low, high, offsets[a : b + 1] - low) for low, high, a, b in zip(at, at[1:], starts, ends, strict=False)]


@dataclass(frozen=True, slots=True)
class Field:
    """One named column. `shape` is a row's shape; a ragged field has rows of any length."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...] = ()
    ragged: bool = False
    text: bool = False


@dataclass(frozen=True, slots=True)
class Skipped:
    """Rows that were left out: `rows` of them from `row` on, in file `path`."""

    path: str
    row: int
    rows: int
    reason: str


class Place(NamedTuple):
    """Where a batch stands: what its order, and any randomness in making it, follow from."""

    seed: int = 0
    epoch: int = 0
    position: int = 0


_START = Place()


@dataclass(slots=True)
class Pick:
    """The rows of one batch, in order. Row i is row `inner[i]` of block `slot[i]`, of all blocks in `held`."""

    rows: Ints
    slot: Ints
    inner: Ints
    held: Sequence[Any] = field(default_factory=list)
    """What `Source.stack` made of each window's blocks."""
    place: Place = _START

    def where(self, keep: np.ndarray[Any, np.dtype[np.bool_]]) -> "Pick":
        """Only the rows for which `keep` is true."""
        return Pick(self.rows[keep], self.slot[keep], self.inner[keep], self.held, self.place)


class BadRowsError(Exception):
    """Rows of a batch that a gather could not deliver, by their number in the batch. The others can be had."""

    def __init__(self, errors: Mapping[int, DataError]) -> None:
        self.errors = errors
        super().__init__(f"{len(errors)} rows")


class Lease(Protocol):
    """Lends memory that nobody else writes to while a tensor of it is alive."""

    def __call__(self, rows: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """A tensor of `rows` rows of `shape`, and the same memory as rows of bytes."""


class Reader(Protocol):
    """Gathers the batches of one stream, and reads ahead along its order."""

    def gather(self, pick: Pick, lease: Lease) -> Batch:
        """The rows of a batch; raises BadRowsError if some of them cannot be had."""

    def close(self) -> None:
        """Stop reading ahead; a gather that waits raises ClosedError."""


@dataclass(frozen=True, slots=True)
class RemoteFigures:
    """What reading from a remote store took, since the source was opened."""

    requests: int
    """Sent, second tries included."""
    in_flight_limit: int
    """Requests that may be under way at once, as chosen last."""
    bytes_received: int
    latency_s: float | None
    """Median of the latest requests."""
    latency_p95_s: float | None
    retries: int
    """Requests repeated because of an error, a time-out or a wrong body."""
    throttled: int
    """Answers that asked for fewer requests (503, 429)."""
    timeouts: int
    rejected: int
    """Bodies thrown away because size or checksum was wrong."""
    hedges: int
    """Second requests for objects that took too long."""
    hedges_won: int
    cache_hits: int
    cache_misses: int
    cache_bytes: int
    """Written into the cache by this process."""
    cache_rejected: int
    """Cached files thrown away because size or checksum was wrong."""
    cache_kept_share: float | None
    """Of the source's bytes, the share that the cache's budget keeps. None: no cache."""
    cache_off: str | None
    """Why nothing more is written to the cache. None: all is well."""


class Source(ABC):
    """Where samples live. One subclass per kind of data; safe to use from several threads."""

    kind: ClassVar[str]
    holds_blocks: ClassVar[bool] = False
    """True if a block must be loaded before rows of it can be gathered; else any row can be read at once."""

    draws: ClassVar[bool] = False
    """True if what a block holds is drawn anew each epoch; then `draw` is called, not `load`."""
    splits: ClassVar[bool] = False
    """True if one gather of several batches' rows can be cut into those batches."""
    pads: ClassVar[bool] = False
    """True if rows come padded already."""

    blocks: Blocks
    fields: tuple[Field, ...]
    row_bytes: float
    """Memory that a row takes, on average, once loaded."""
    skipped: tuple[Skipped, ...] = ()
    """What `open(…, on_error="skip")` left out."""
    padding_share: float | None = None
    """Of what was gathered, the share of elements that are padding; only of a source that pads by itself."""
    amplification: float | None = None
    """What was read and decoded ÷ what was used of it."""

    def __len__(self) -> int:
        return self.blocks.rows

    def batch_bytes(self, rows: int) -> float:
        """Memory that a batch of so many rows takes, at most; of rows that differ and are not padded, on average."""
        return rows * self.row_bytes

    @abstractmethod
    def fingerprint(self) -> dict[str, Any]:
        """What makes this source this one; a saved state holds it. Small, whatever the number of rows."""

    @abstractmethod
    def gather(self, pick: Pick, lease: Lease) -> Batch:
        """The rows of a batch, each field in one tensor. No Python per row."""

    @abstractmethod
    def locate(self, row: int) -> tuple[str, int]:
        """The file of a row, and its number inside that file."""

    @abstractmethod
    def paths(self) -> list[str]:
        """The files, in order."""

    @abstractmethod
    def file_starts(self) -> Ints:
        """The first row of each file, and the number of rows at the end."""

    def load(self, block: int, lease: Lease) -> Any:
        """Read and decode one block into leased memory; only if `holds_blocks`. What it returns has `nbytes`."""
        raise NotImplementedError

    def draw(self, block: int, seed: int, epoch: int, lease: Lease) -> Any:
        """Read one block as it is in this epoch; only if `draws`."""
        raise NotImplementedError

    def stack(self, loaded: Sequence[Any]) -> Any:
        """What `gather` needs of a window's loaded blocks; an exception stands for a block that failed."""
        raise NotImplementedError

    def lengths(self, pick: Pick) -> Ints:
        """The elements of each row, over all ragged fields; only if it holds blocks or pads."""
        raise NotImplementedError

    def enter(self, first: Ints, sizes: Ints) -> None:  # noqa: B027  a hint, which a source may ignore
        """These runs of rows will be read soon."""

    def leave(self, first: Ints, sizes: Ints) -> None:  # noqa: B027
        """These runs of rows will not be read again this epoch."""

    def reader(self, ahead: Iterator[tuple[Place, Ints]], *, memory_bytes: int, threads: int) -> Reader | None:
        """For a source that reads ahead along the order: `ahead` gives the coming batches, in order, without end.

        None: rows need no preparation; `gather` is called for each batch.
        """
        return None

    def remote(self) -> RemoteFigures | None:
        """What reading from a remote store took; None for local data."""
        return None

    def close(self) -> None:  # noqa: B027
        """Give back descriptors and mappings."""

    def describe(self) -> Mapping[str, Any]:
        """For people: kind, files, rows, fields."""
        return {"kind": self.kind, "files": len(self.file_starts()) - 1, "rows": len(self), "fields": self.fields}
