"""Shards of Zarr 3, read in part: the index at the end of an object tells where each of its chunks lies.

What a box needs of a shard becomes a shard of its own, with the other chunks missing, so that tensorstore decodes it.
"""

import itertools
import json
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ChecksumError, CorruptError
from stoker.loader.source.volume import Box

Index = NDArray[np.uint64]
"""Offset and size of each chunk of a shard, along its axes."""

_MISSING = np.uint64(2**64 - 1)
_ENTRY_BYTES, _CHECK_BYTES = 16, 4
_PLAIN = [{"name": "bytes", "configuration": {"endian": "little"}}]


class Chunk(NamedTuple):
    """A chunk that a box needs: its place in the shard's index, and where it lies in the object."""

    place: tuple[int, ...]
    start: int
    stop: int


class Sharding:
    """How an array's shards are made."""

    def __init__(self, shard: tuple[int, ...], chunk: tuple[int, ...], *, at_end: bool, checked: bool) -> None:
        self._shard, self._chunk = shard, chunk
        self._counts = tuple(whole // part for whole, part in zip(shard, chunk, strict=True))
        self._at_end, self._checked = at_end, checked
        self.index_bytes = int(np.prod(self._counts)) * _ENTRY_BYTES + _CHECK_BYTES * checked

    def index_at(self, nbytes: int) -> tuple[int, int]:
        """Where the index of an object of this size lies."""
        return (nbytes - self.index_bytes, nbytes) if self._at_end else (0, self.index_bytes)

    def parse(self, path: str, raw: bytes) -> Index:
        """The index, compared with its checksum."""
        body = raw[: self.index_bytes - _CHECK_BYTES * self._checked]
        if self._checked and crc32c(body) != int.from_bytes(raw[len(body) :], "little"):
            raise ChecksumError(path, "the index of a shard is not what its checksum says")
        return np.frombuffer(body, "<u8").reshape(*self._counts, 2)

    def needed(self, path: str, index: Index, number: tuple[int, ...], box: Box, nbytes: int) -> Iterator[Chunk]:
        """The chunks of a shard that a box touches and that are there."""
        sides = []
        for at, cut, whole, part in zip(number, box, self._shard, self._chunk, strict=True):
            low, high = max(cut.start - at * whole, 0), min(cut.stop - at * whole, whole)
            sides.append(range(low // part, -(-high // part)))
        for place in itertools.product(*sides):
            start, size = index[place]
            if start == _MISSING and size == _MISSING:
                continue
            if int(start) + int(size) > nbytes:
                raise CorruptError(path, f"a shard says that a chunk lies at {start}, behind its {nbytes} bytes")
            yield Chunk(place, int(start), int(start) + int(size))

    def only(self, chunks: dict[tuple[int, ...], bytes]) -> bytes:
        """A shard with these chunks; its index is plain and at the end, as `plain` says."""
        index = np.full((*self._counts, 2), _MISSING, "<u8")
        at = 0
        for place, data in chunks.items():
            index[place] = (at, len(data))
            at += len(data)
        return b"".join([*chunks.values(), index.tobytes()])


def sharding_of(metadata: bytes) -> Sharding | None:
    """How an array of Zarr 3 is sharded; None if it is not, or in a way that has to be read whole."""
    said = json.loads(metadata)
    codecs = said.get("codecs") or []
    if len(codecs) != 1 or codecs[0].get("name") != "sharding_indexed":
        return None
    how = codecs[0]["configuration"]
    names = [codec.get("name") for codec in how.get("index_codecs", [])]
    endian = (how.get("index_codecs") or [{}])[0].get("configuration", {}).get("endian", "little")
    if names not in (["bytes"], ["bytes", "crc32c"]) or endian != "little":
        return None
    shard = tuple(said["chunk_grid"]["configuration"]["chunk_shape"])
    at_end = how.get("index_location", "end") == "end"
    return Sharding(shard, tuple(how["chunk_shape"]), at_end=at_end, checked=len(names) > 1)


def plain(metadata: bytes) -> bytes:
    """The metadata of an array whose shards are those of `Sharding.only`."""
    said: dict[str, Any] = json.loads(metadata)
    said["codecs"][0]["configuration"] |= {"index_codecs": _PLAIN, "index_location": "end"}
    return json.dumps(said).encode()


@cache
def _table() -> list[int]:
    found = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        found.append(value)
    return found


def crc32c(data: bytes) -> int:
    """The checksum of Castagnoli; an index is short, so no library is asked for it."""
    table, value = _table(), 0xFFFFFFFF
    for byte in data:
        value = table[(value ^ byte) & 0xFF] ^ value >> 8
    return value ^ 0xFFFFFFFF
