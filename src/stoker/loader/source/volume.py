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
    EmptyFileError,
    MissingChunkError,
    MissingExtraError,
    NoDataError,
    OtherTypeError,
    TruncatedError,
    UsageError,
    VanishedError,
)
from stoker.loader.source.paths import Paths, nbytes, walk

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
            raise CorruptError(path, f"cannot be opened as Zarr ({_first(error)})") from error
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
            kind = MissingChunkError if "is missing" in str(error) else CorruptError
            hint = "; if it stands for empty space, open with missing='fill'" if kind is MissingChunkError else ""
            raise kind(self.path, f"{_first(error)}{hint}") from error
        return found

    def identity(self) -> str:
        """The metadata, and the sizes and times of all files."""
        root = Path(self.path)
        files = sorted(map(str, walk(root)))
        stamps = [(str(Path(f).relative_to(root)), Path(f).stat().st_size, Path(f).stat().st_mtime_ns) for f in files]
        told = (str(root.resolve()), self._meta.read_bytes(), stamps)
        return hashlib.sha256(repr(told).encode()).hexdigest()[:32]


def _zarr_meta(path: str) -> Path:
    root = Path(path)
    for name in (".zarray", "zarr.json"):
        if (root / name).exists():
            _check_array(root, name)
            return root / name
    inside = sorted(str(one.parent) for one in [*root.glob("*/.zarray"), *root.glob("*/zarr.json")])
    if inside:
        raise UsageError(f"{path} is a group of arrays; open one of them, such as {inside[0]}")
    raise CorruptError(path, "holds neither .zarray nor zarr.json; expected a Zarr array")


def _check_array(root: Path, name: str) -> None:
    if name == ".zarray":
        return
    try:
        said = json.loads((root / name).read_text())
    except ValueError as error:
        raise CorruptError(str(root), f"its {name} is not JSON ({error})") from error
    if said.get("node_type") == "group":
        inside = sorted(str(one.parent) for one in root.glob("*/zarr.json"))
        raise UsageError(
            f"{root} is a group of arrays; open one of them, such as {inside[0] if inside else f'{root}/0'}"
        )


def _first(error: Exception) -> str:
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
                self.shape, self.dtype = tuple(series.shape), np.dtype(series.dtype)
                self._offset: Any = series.dataoffset  # None if the pixels do not lie plainly in a row
                self._order = file.byteorder
                pages = len(series.pages)
        except (tifffile.TiffFileError, ValueError, IndexError, KeyError) as error:
            raise CorruptError(path, f"cannot be opened as TIFF ({error})") from error
        if self._offset is not None:
            self.chunk = (1,) * len(self.shape)
            self._check_size()
        else:
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
        try:
            with self._tifffile.TiffFile(self.path) as file:
                pages = file.asarray(series=0, key=box[0])
        except FileNotFoundError:
            raise VanishedError(self.path, "was there when it was opened, and is not any more") from None
        except Exception as error:  # decoders raise errors of their own kinds
            raise CorruptError(self.path, f"pages {box[0].start} to {box[0].stop - 1}: {error}") from error
        depth = box[0].stop - box[0].start
        if pages.size != depth * int(np.prod(self.shape[1:])):
            raise TruncatedError(self.path, f"pages {box[0].start} to {box[0].stop - 1} are not all there")
        return np.ascontiguousarray(pages.reshape(depth, *self.shape[1:])[(slice(None), *box[1:])])

    def identity(self) -> str:
        """Size and time of the file."""
        about = Path(self.path).stat()
        told = (str(Path(self.path).resolve()), about.st_size, about.st_mtime_ns)
        return hashlib.sha256(repr(told).encode()).hexdigest()[:32]


def spatial(volume: Volume, patch: Sequence[int]) -> tuple[int, ...]:
    """The axes that a patch is cut from: the last ones; those before are channels."""
    return volume.shape[len(volume.shape) - len(patch) :]
