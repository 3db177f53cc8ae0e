"""TIFF stacks in a store: the tags of all pages when one is opened, then the strips, tiles or rows that a box needs."""

import hashlib
import io
from typing import Any

from numpy.typing import NDArray

from stoker.errors import EmptyFileError, StokerError, TruncatedError
from stoker.loader.source.parts import PIECE, Object, Parts, soon
from stoker.loader.source.tier import Tier
from stoker.loader.source.tiff import Stack
from stoker.loader.source.volume import Box, Volume

_BLOCK = 1 << 12
_KEPT = 2
"""The tags of a page, and what they point to, mostly fit into so many blocks."""
_AHEAD = 4
"""Pieces that are asked for ahead where every piece so far had the tags of a page: pages are small there."""
_LATEST = 8
"""Pieces of which a page's strips may lie in the same ones as the page's before."""


class Tags(io.RawIOBase):
    """An object as a file to read tags from: they lie between the pixels, and are looked at several times."""

    def __init__(self, tier: Tier, one: Object) -> None:
        super().__init__()
        self._tier, self._one, self._at = tier, one, 0
        self._blocks: dict[int, bytes] = {}
        self._piece: tuple[int, bytes] = (-2, b"")  # the first one follows none
        self.error: StokerError | None = None
        """The first one; whoever reads tags may have taken it for the end of the file."""

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place in the file."""
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._one.nbytes}[whence]
        return self._at

    def tell(self) -> int:
        """The place in the file."""
        return self._at

    def read(self, size: int = -1) -> bytes:
        """The bytes from here on."""
        start, end = self._at, self._one.nbytes
        stop = end if size < 0 else min(end, start + size)
        if start >= stop:
            return b""
        first = start // _BLOCK
        found = b"".join(self._block(number) for number in range(first, -(-stop // _BLOCK)))
        self._at = stop
        return found[start - first * _BLOCK : stop - first * _BLOCK]

    def _block(self, number: int) -> bytes:
        if number not in self._blocks:
            piece, at = divmod(number * _BLOCK, PIECE)
            data = self._brought(piece)
            for near in range(_KEPT):
                if block := data[at + near * _BLOCK : at + (near + 1) * _BLOCK]:
                    self._blocks[number + near] = block
        return self._blocks[number]

    def _brought(self, piece: int) -> bytes:
        latest, data = self._piece
        if piece != latest:
            last = self._one.pieces(0, self._one.nbytes)[-1]
            first = self._one.first + piece
            ahead = _AHEAD if piece == latest + 1 else 0
            try:
                self._tier.soon(range(first, min(last, first + ahead) + 1))
                data = bytes(self._tier.take(first))
            except StokerError as error:
                self.error = self.error or error
                raise
            self._piece = (piece, data)
        return data


class RemoteTiff(Volume):
    """A stack that is an object of a store."""

    def __init__(self, path: str, tier: Tier, one: Object) -> None:
        self.path = path
        self._tier, self._one = tier, one
        if one.nbytes == 0:
            raise EmptyFileError(path, "the object is empty; expected a TIFF stack")
        self._stack = stack = self._look()
        self.shape, self.dtype, self.chunk = stack.shape, stack.dtype, stack.chunk
        if stack.offset is not None and stack.offset + stack.nbytes > one.nbytes:
            there = max(0, one.nbytes - stack.offset)
            raise TruncatedError(path, f"cut short: its voxels take {stack.nbytes} bytes, {there} are there")

    def _look(self) -> Stack:
        with self._tier.held():
            tags = Tags(self._tier, self._one)
            try:
                found = Stack(self.path, tags)
            except Exception as error:
                raise (tags.error or error) from error
        if tags.error is not None:
            raise tags.error
        return found

    def read(self, box: Box) -> NDArray[Any]:
        """The voxels of a box."""
        parts = Parts(self._tier, self._one, _LATEST)
        with self._tier.held():
            inside = [place for place in self._stack.places(box) if place[1] <= self._one.nbytes]
            soon(self._tier, [(parts, *place) for place in inside])
            return self._stack.read(box, lambda start, stop: self._fetch(parts, start, stop))

    def _fetch(self, parts: Parts, start: int, stop: int) -> bytes:
        if stop > self._one.nbytes:
            reason = f"cut short: pixels lie at bytes {start} to {stop}, {self._one.nbytes} bytes are there"
            raise TruncatedError(self.path, reason)
        return parts.read(start, stop)

    def identity(self) -> str:
        """The address, the tag and the size of the object."""
        told = (self.path, self._tier.store.listed.tag(self._one.row), self._one.nbytes)
        return hashlib.sha256(repr(told).encode()).hexdigest()[:32]
