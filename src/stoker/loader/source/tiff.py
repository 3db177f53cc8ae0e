"""A stack of pages in a TIFF file: where its pixels lie, and how what a box needs of them becomes voxels.

Bytes come through a function, so that the file may lie on a disk or in a store.
"""

import itertools
import math
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.errors import CorruptError, MissingExtraError, OtherTypeError, StokerError, TruncatedError, UsageError

Fetch = Callable[[int, int], Any]
"""Start and stop in the file → the bytes between."""

_ROW_BYTES = 1 << 16
"""Of pixels that lie plainly in a row, those of a row are read whole if they are so few."""
_JPEG = (6, 7, 34892, 33007)
"""Compressions whose strips need tables that stand elsewhere in the file."""


class Stack:
    """A stack's pages, as its tags describe them; knows the file only while it is made."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunk: tuple[int, ...]
    """The smallest box that can be read: a voxel, a strip or a tile; a page where its strips are no part of it."""
    byteorder: Any
    offset: int | None
    """Where the pixels begin, if all of them lie plainly in a row."""

    def __init__(self, path: str, file: Any) -> None:
        """`file` is a path or an open file; errors call it `path`."""
        try:
            import tifffile
        except ImportError as error:
            raise MissingExtraError("tifffile", "volumes") from error
        self.path = path
        try:
            with tifffile.TiffFile(file) as opened:
                self._look(opened, tifffile)
        except (tifffile.TiffFileError, ValueError, IndexError, KeyError, RuntimeError, struct.error) as error:
            raise CorruptError(path, f"cannot be opened as TIFF ({error})") from error

    def _look(self, file: Any, tifffile: Any) -> None:
        series = file.series[0]
        # By its name: of two types of the same bits, torch knows one, and tifffile may give the other.
        self.shape, self.dtype = tuple(series.shape), np.dtype(np.dtype(series.dtype).str)
        self.offset, self.byteorder = series.dataoffset, file.byteorder
        if series.is_multifile:  # offsets alone do not say which
            raise OtherTypeError(self.path, "its pages lie in several files; expected a stack that is one file")
        if self.offset is not None:
            self.chunk = (1,) * len(self.shape)
            return
        if not _has_last_page(file):
            found = len(file.pages)
            raise TruncatedError(
                self.path, f"cut short: {found} pages are there, and the last one says that more follow"
            )
        page = series.keyframe
        compression = tifffile.COMPRESSION(page.compression)
        if page.compression != 1 and compression not in tifffile.TIFF.DECOMPRESSORS:
            raise UsageError(
                f"{self.path} is compressed with {compression.name}, which tifffile decodes with imagecodecs; "
                "run: pip install imagecodecs"
            )
        pages = len(series.pages)
        if pages != self.shape[0]:
            raise OtherTypeError(self.path, f"has {pages} pages for a shape of {self.shape}; expected a page per slice")
        self._lay_out(page)
        self._find([series.pages[number] for number in range(pages)], page)
        del file.series  # the decoder refers to the file, and so to all its pages; thousands of volumes may be open
        file.pages.cache = False

    def _lay_out(self, page: Any) -> None:
        """How strips or tiles make a page."""
        self._is_final = bool(page.is_final)  # its pixels lie plainly in a row
        self._shaped, self._nodata, self._decode = tuple(page.shaped), page.nodata, page.decode
        planes, depth, height, width, samples = self._shaped
        sides = (page.tilelength, page.tilewidth) if page.is_tiled else (page.rowsperstrip, width)
        self._sides = (min(height, sides[0]), min(width, sides[1]))
        like = ((height, width, samples), *([(height, width)] if samples == 1 else []))
        self._is_flat = (planes, depth) == (1, 1) and self.shape[1:] in like
        self._parts = math.prod(page.chunked)
        if self._is_final:
            self.chunk = (1,) * len(self.shape)
        else:
            self.chunk = (1, *self._sides, *self.shape[3:]) if self._is_flat else (1, *self.shape[1:])

    def _find(self, pages: Sequence[Any], keyframe: Any) -> None:
        """Where the strips or tiles of each page lie."""
        parts = 1 if self._is_final else self._parts
        for number, page in enumerate(pages):
            there = 0 if page is None else min(len(page.dataoffsets), len(page.databytecounts))
            if there < parts:
                raise CorruptError(self.path, f"page {number} has {there} strips or tiles; expected {parts}")
        self._offsets = np.array([page.dataoffsets[:parts] for page in pages], np.int64)
        self._counts = np.array([page.databytecounts[:parts] for page in pages], np.int64)
        is_jpeg = keyframe.compression in _JPEG
        header = {"jpegheader": keyframe.jpegheader} if is_jpeg else {}
        self._how = [{"jpegtables": page.jpegtables, **header} for page in pages] if is_jpeg else None

    @property
    def nbytes(self) -> int:
        """Of all voxels."""
        return math.prod(self.shape) * self.dtype.itemsize

    def places(self, box: Sequence[slice]) -> Iterator[tuple[int, int]]:
        """Start and stop of all that a box needs, in the order in which it is read."""
        if self.offset is not None:
            yield from ((start, stop) for _, start, stop in self._runs(self.offset, self.shape, box))
            return
        for number in range(box[0].start, box[0].stop):
            if self._is_final:
                base = int(self._offsets[number, 0])
                yield from ((start, stop) for _, start, stop in self._runs(base, self.shape[1:], box[1:]))
            else:
                yield from (place for part in self._needed(box[1:]) if (place := self._place(number, part)))

    def read(self, box: Sequence[slice], fetch: Fetch) -> NDArray[Any]:
        """The voxels of a box."""
        if self.offset is not None:
            return self._plain(self.offset, self.shape, box, fetch)
        found = np.empty([cut.stop - cut.start for cut in box], self.dtype.newbyteorder("="))
        for number in range(box[0].start, box[0].stop):  # one at a time: a page may be far larger than its cut
            try:
                found[number - box[0].start] = self._page(number, box[1:], fetch)
            except StokerError:
                raise
            except Exception as error:  # decoders raise errors of their own kinds
                raise CorruptError(self.path, f"page {number}: {error}") from error
        return found

    def _page(self, number: int, inside: Sequence[slice], fetch: Fetch) -> NDArray[Any]:
        if self._is_final:
            return self._plain(int(self._offsets[number, 0]), self.shape[1:], inside, fetch)
        if self._is_flat:
            return self._cut(number, inside, fetch)
        whole = np.empty(self._shaped, self.dtype.newbyteorder("="))
        _, depth, height, width, _ = self._shaped
        for part in range(self._parts):
            data, (s, z, y, x, _), (deep, high, wide, _) = self._decoded(number, part, fetch)
            at = (s, slice(z, z + deep), slice(y, y + high), slice(x, x + wide))
            whole[at] = self._nodata if data is None else data[: depth - z, : height - y, : width - x]
        return whole.reshape(self.shape[1:])[tuple(inside)]

    # ---- pixels in a row

    def _runs(
        self, base: int, shape: Sequence[int], box: Sequence[slice]
    ) -> Iterator[tuple[tuple[int, ...], int, int]]:
        """Rows of a box that lie one behind the other: their place along the axes before, start and stop."""
        at = _row_axis(shape, self.dtype.itemsize)
        row_bytes = math.prod(shape[at + 1 :]) * self.dtype.itemsize
        for lead in itertools.product(*(range(cut.start, cut.stop) for cut in box[:at])):
            first = 0
            for place, side in zip(lead, shape, strict=False):
                first = first * side + place
            start = base + first * shape[at] * row_bytes
            yield lead, start + box[at].start * row_bytes, start + box[at].stop * row_bytes

    def _plain(self, base: int, shape: Sequence[int], box: Sequence[slice], fetch: Fetch) -> NDArray[Any]:
        at, stored = _row_axis(shape, self.dtype.itemsize), self.dtype.newbyteorder(self.byteorder)
        found = np.empty([cut.stop - cut.start for cut in box], self.dtype.newbyteorder("="))
        for lead, start, stop in self._runs(base, shape, box):
            rows = np.frombuffer(fetch(start, stop), stored).reshape(-1, *shape[at + 1 :])
            into = tuple(place - cut.start for place, cut in zip(lead, box, strict=False))
            found[into] = rows[(slice(None), *box[at + 1 :])]
        return found

    # ---- strips and tiles

    def _needed(self, inside: Sequence[slice]) -> Iterator[int]:
        """The strips or tiles of a page that a box touches."""
        if not self._is_flat:
            yield from range(self._parts)
            return
        across = -(-self._shaped[3] // self._sides[1])
        rows, columns = (
            range(cut.start // side, -(-cut.stop // side)) for cut, side in zip(inside, self._sides, strict=False)
        )
        yield from (row * across + column for row in rows for column in columns)

    def _place(self, number: int, part: int) -> tuple[int, int] | None:
        """Where one lies; None if it is empty."""
        start, count = int(self._offsets[number, part]), int(self._counts[number, part])
        return (start, start + count) if start > 0 and count > 0 else None

    def _decoded(self, number: int, part: int, fetch: Fetch) -> Any:
        place = self._place(number, part)
        how = self._how[number] if self._how else {}
        return self._decode(None if place is None else fetch(*place), part, **how)

    def _cut(self, number: int, inside: Sequence[slice], fetch: Fetch) -> NDArray[Any]:
        """The cut of a page, from the strips or tiles that it touches."""
        found = np.empty([cut.stop - cut.start for cut in inside], self.dtype.newbyteorder("="))
        rows, columns = inside[:2]
        last: Any = inside[2:] or (0,)  # one sample has no axis of its own
        for part in self._needed(inside):
            data, (_, _, y, x, _), (_, high, wide, _) = self._decoded(number, part, fetch)
            top, bottom = max(y, rows.start), min(y + high, rows.stop)
            left, right = max(x, columns.start), min(x + wide, columns.stop)
            into = (
                slice(top - rows.start, bottom - rows.start),
                slice(left - columns.start, right - columns.start),
            )
            cut = (0, slice(top - y, bottom - y), slice(left - x, right - x), *last)
            found[into] = self._nodata if data is None else data[cut]
        return found


def _row_axis(shape: Sequence[int], itemsize: int) -> int:
    """The first axis along which a step is small."""
    steps = [math.prod(shape[axis + 1 :]) * itemsize for axis in range(len(shape))]
    return next((axis for axis, step in enumerate(steps) if step <= _ROW_BYTES), len(shape) - 1)


def _has_last_page(file: Any) -> bool:
    """True if the chain of pages comes to its end; tifffile leaves out what follows a link that leads nowhere."""
    file.filehandle.seek(file.pages.next_page_offset)
    following = file.filehandle.read(file.tiff.offsetsize)
    return len(following) == file.tiff.offsetsize and not any(following)
