"""One volume on disk, read box by box: Zarr through tensorstore, TIFF stacks through tifffile."""

import glob
import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.errors import (
    CorruptError,
    DataError,
    EmptyFileError,
    MissingChunkError,
    MissingExtraError,
    NoDataError,
    OtherTypeError,
    TruncatedError,
    UsageError,
    VanishedError,
)
from stoker.loader.source.paths import Paths, check_local, nbytes, walk

Box = tuple[slice, ...]
"""A slice for each axis."""

ZARR = ".zarr"
TIFF = (".tif", ".tiff")


class Volume(ABC):
    """An array on disk; safe to read from several threads."""

    path: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunk: tuple[int, ...]
    """The smallest box that can be read: what is decoded is always whole ones of these."""

    @abstractmethod
    def read(self, box: Box) -> NDArray[Any]:
        """The voxels of a box."""

    @abstractmethod
    def identity(self) -> str:
        """What changes when the volume does, as far as its place, sizes and times tell."""

    def voxels_read(self, box: Box) -> int:
        """Voxels that have to be decoded to read a box: all of every chunk that it touches."""
        count = 1
        for cut, chunk, full in zip(box, self.chunk, self.shape, strict=True):
            low = cut.start // chunk * chunk
            count *= min(full, -(-cut.stop // chunk) * chunk) - low
        return count

    def whole(self) -> Box:
        """The box of all voxels."""
        return tuple(slice(0, side) for side in self.shape)


def find(given: Paths) -> list[str]:
    """The volumes of a path, a folder, a glob or a list of these; sorted by name."""
    every = [given] if isinstance(given, str | os.PathLike) else list(given)
    found = [volume for one in every for volume in _expand(os.fspath(one).rstrip("/"))]
    if not found:
        written = ", ".join(os.fspath(one) for one in every) or "an empty list"
        raise NoDataError(f"no volume matches {written}; expected {ZARR} folders or {TIFF[0]} files")
    return sorted(dict.fromkeys(found))


def _expand(path: str) -> list[str]:
    check_local(path)
    if glob.has_magic(path) and not Path(path).exists():
        return [one for one in sorted(glob.glob(path, recursive=True)) if _is_volume(one)]  # noqa: PTH207
    if not Path(path).exists():
        raise NoDataError(f"{path} does not exist; expected a volume, a folder or a glob")
    if _is_volume(path):
        return [path]
    if Path(path).is_dir():
        return [str(one) for one in sorted(Path(path).iterdir()) if _is_volume(str(one))]
    raise UsageError(f"{path} is no volume; expected a {ZARR} folder or a {TIFF[0]} file")


def _is_volume(path: str) -> bool:
    at = Path(path)
    if at.is_dir():
        return at.suffix == ZARR or (at / ".zarray").exists() or (at / "zarr.json").exists()
    return at.suffix.lower() in TIFF or (at.suffix == ZARR and not at.exists())


def open_volume(path: str, *, fill_missing: bool = False) -> Volume:
    """A volume of the kind that its name says."""
    return ZarrVolume(path, fill_missing=fill_missing) if Path(path).is_dir() else TiffVolume(path)


class ZarrVolume(Volume):
    """A Zarr array, of version 2 or 3, sharded or not."""

    def __init__(self, path: str, *, fill_missing: bool = False) -> None:
        try:
            import tensorstore
        except ImportError as error:
            raise MissingExtraError("tensorstore", "volumes") from error
        self.path = path
        self._meta = _zarr_meta(path)
        spec = {
            "driver": "zarr" if self._meta.name == ".zarray" else "zarr3",
            "kvstore": {"driver": "file", "path": str(Path(path).resolve())},
            "fill_missing_data_reads": fill_missing,
            "context": {"cache_pool": {"total_bytes_limit": 0}},
        }
        try:
            self._store = tensorstore.open(spec, open=True, read=True).result()
        except ValueError as error:
            raise CorruptError(path, f"cannot be opened as Zarr ({told(error)})") from error
        self.shape = tuple(self._store.shape)
        self.dtype = np.dtype(self._store.dtype.numpy_dtype)
        chunk: Any = self._store.chunk_layout.read_chunk.shape
        self.chunk = tuple(chunk)

    def read(self, box: Box) -> NDArray[Any]:
        """The voxels of a box; a chunk that is not there is an error, unless it is to be filled."""
        try:
            found: NDArray[Any] = self._store[box].read(order="C").result()
        except ValueError as error:
            if not self._meta.exists():
                raise VanishedError(self.path, "was there when it was opened, and is not any more") from error
            raise misread(self.path, error) from error
        return found

    def identity(self) -> str:
        """The metadata, and the sizes and times of all files."""
        root = Path(self.path)
        files = sorted(map(str, walk(root)))
        stamps = [(str(Path(f).relative_to(root)), *_stamp(f)) for f in files]
        told = (str(root.resolve()), self._meta.read_bytes(), stamps)
        return hashlib.sha256(repr(told).encode()).hexdigest()[:32]


def misread(path: str, error: ValueError) -> DataError:
    """What it means that a box cannot be read."""
    if "is missing" not in str(error):
        return CorruptError(path, told(error))
    hint = "if it stands for empty space, open with missing='fill' (or pack with --missing fill)"
    return MissingChunkError(path, f"{told(error)}; {hint}")


def _zarr_meta(path: str) -> Path:
    root = Path(path)
    for name in (".zarray", "zarr.json"):
        if (root / name).exists():
            if name != ".zarray":
                check_array(str(root), name, (root / name).read_text(), sorted(map(str, root.glob("*/zarr.json"))))
            return root / name
    inside = sorted(str(one.parent) for one in [*root.glob("*/.zarray"), *root.glob("*/zarr.json")])
    if inside:
        raise UsageError(f"{path} is a group of arrays; open one of them, such as {inside[0]}")
    raise CorruptError(path, "holds neither .zarray nor zarr.json; expected a Zarr array")


def check_array(path: str, name: str, text: str, inside: Sequence[str]) -> None:
    """Refuse metadata that describe no array; `inside` are the metadata of what lies in the folder."""
    try:
        said = json.loads(text)
    except ValueError as error:
        raise CorruptError(path, f"its {name} is not JSON ({error})") from error
    if not isinstance(said, dict):
        raise CorruptError(path, f"its {name} holds {type(said).__name__}; expected what describes an array")
    if said.get("node_type") == "group":
        first = str(Path(inside[0]).parent) if inside else f"{path}/0"
        raise UsageError(f"{path} is a group of arrays; open one of them, such as {first}")


def told(error: Exception) -> str:
    """The sentence of a tensorstore error, without what it adds for its own developers."""
    return str(error).split(" [tensorstore_spec=")[0].split(" [source locations=")[0]


class TiffVolume(Volume):
    """A stack of pages in one TIFF file: mapped where its pixels lie plainly in a row, else decoded page by page."""

    def __init__(self, path: str) -> None:
        try:
            import tifffile
        except ImportError as error:
            raise MissingExtraError("tifffile", "volumes") from error
        self.path = path
        self._tifffile = tifffile
        if nbytes(path) == 0:
            raise EmptyFileError(path, "the file is empty; expected a TIFF stack")
        try:
            with tifffile.TiffFile(path) as file:
                series = file.series[0]
                # By its name: of two types of the same bits, torch knows one, and tifffile may give the other.
                self.shape, self.dtype = tuple(series.shape), np.dtype(np.dtype(series.dtype).str)
                self._offset: Any = series.dataoffset  # None if the pixels do not lie plainly in a row
                self._order = file.byteorder
                pages = len(series.pages)
                compression = tifffile.COMPRESSION(series.keyframe.compression)
                whole = self._offset is not None or _has_last_page(file)
                found = len(file.pages)
        except (tifffile.TiffFileError, ValueError, IndexError, KeyError) as error:
            raise CorruptError(path, f"cannot be opened as TIFF ({error})") from error
        if not whole:
            raise TruncatedError(path, f"cut short: {found} pages are there, and the last one says that more follow")
        if self._offset is not None:
            self.chunk = (1,) * len(self.shape)
            self._check_size()
        else:
            if compression not in tifffile.TIFF.DECOMPRESSORS:
                raise UsageError(
                    f"{path} is compressed with {compression.name}, which tifffile decodes with imagecodecs; "
                    "run: pip install imagecodecs"
                )
            if pages != self.shape[0]:
                raise OtherTypeError(path, f"has {pages} pages for a shape of {self.shape}; expected a page per slice")
            self.chunk = (1, *self.shape[1:])

    def _check_size(self) -> None:
        """Refuse a file that was cut short: reading a mapping past the end of its file ends the process."""
        try:
            there = Path(self.path).stat().st_size - self._offset
        except FileNotFoundError:
            raise VanishedError(self.path, "was there when it was opened, and is not any more") from None
        needed = int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize
        if there < needed:
            raise TruncatedError(self.path, f"cut short: its voxels take {needed} bytes, {max(0, there)} are there")

    def read(self, box: Box) -> NDArray[Any]:
        """The voxels of a box."""
        if self._offset is not None:
            self._check_size()
            stored = self.dtype.newbyteorder(self._order)
            mapped = np.memmap(self.path, stored, "r", self._offset, self.shape)
            return np.ascontiguousarray(mapped[box], self.dtype.newbyteorder("="))
        found = np.empty([cut.stop - cut.start for cut in box], self.dtype.newbyteorder("="))
        number = box[0].start
        try:
            with self._tifffile.TiffFile(self.path) as file:
                pages: Any = file.series[0].pages
                for number in range(box[0].start, box[0].stop):  # one at a time: a page may be far larger than its cut
                    page = pages[number].asarray(maxworkers=1)
                    found[number - box[0].start] = page.reshape(self.shape[1:])[box[1:]]
        except FileNotFoundError:
            raise VanishedError(self.path, "was there when it was opened, and is not any more") from None
        except IndexError as error:
            raise TruncatedError(self.path, f"page {number} is not there any more") from error
        except Exception as error:  # decoders raise errors of their own kinds
            raise CorruptError(self.path, f"page {number}: {error}") from error
        return found

    def identity(self) -> str:
        """Size and time of the file."""
        told = (str(Path(self.path).resolve()), *_stamp(self.path))
        return hashlib.sha256(repr(told).encode()).hexdigest()[:32]


def _stamp(path: str) -> tuple[int, int, int]:
    """Size and times of a file; that of its last change nobody can set back."""
    about = Path(path).stat()
    return about.st_size, about.st_mtime_ns, about.st_ctime_ns


def _has_last_page(file: Any) -> bool:
    """True if the chain of pages comes to its end; tifffile leaves out what follows a link that leads nowhere."""
    file.filehandle.seek(file.pages.next_page_offset)
    following = file.filehandle.read(file.tiff.offsetsize)
    return len(following) == file.tiff.offsetsize and not any(following)


def spatial(volume: Volume, patch: Sequence[int]) -> tuple[int, ...]:
    """The axes that a patch is cut from: the last ones; those before are channels."""
    return volume.shape[len(volume.shape) - len(patch) :]
