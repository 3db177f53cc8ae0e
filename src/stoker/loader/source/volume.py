"""One volume on disk, read box by box: Zarr through tensorstore, TIFF stacks through tifffile."""

import glob
import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

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
from stoker.loader.source.tiff import Stack

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
    """A stack of pages in one TIFF file: mapped where its pixels lie plainly in a row, else by its strips or tiles."""

    def __init__(self, path: str) -> None:
        self.path = path
        if nbytes(path) == 0:
            raise EmptyFileError(path, "the file is empty; expected a TIFF stack")
        self._stack, self._seen = Stack(path, path), _stamp(path)
        self.shape, self.dtype, self.chunk = self._stack.shape, self._stack.dtype, self._stack.chunk
        if self._stack.offset is not None:
            self._check_size(self._stack.offset)

    def _check_size(self, offset: int) -> None:
        """Refuse a file that was cut short: reading a mapping past the end of its file ends the process."""
        there, needed = Path(self.path).stat().st_size - offset, self._stack.nbytes
        if there < needed:
            raise TruncatedError(self.path, f"cut short: its voxels take {needed} bytes, {max(0, there)} are there")

    def read(self, box: Box) -> NDArray[Any]:
        """The voxels of a box."""
        try:
            offset = self._stack.offset
            if offset is not None:
                self._check_size(offset)
                stored = self.dtype.newbyteorder(self._stack.byteorder)
                mapped = np.memmap(self.path, stored, "r", offset, self.shape)
                return np.ascontiguousarray(mapped[box], self.dtype.newbyteorder("="))
            with Path(self.path).open("rb") as file:
                return self._as_it_is().read(box, lambda start, stop: self._fetch(file, start, stop))
        except FileNotFoundError:
            raise VanishedError(self.path, "was there when it was opened, and is not any more") from None

    def _as_it_is(self) -> Stack:
        """The stack; looked at again if somebody has written to the file."""
        now = _stamp(self.path)
        if now != self._seen:
            stack = Stack(self.path, self.path)
            if (stack.shape, stack.dtype) != (self.shape, self.dtype):
                then = f"{self.dtype} of shape {self.shape}"
                raise OtherTypeError(self.path, f"is {stack.dtype} of shape {stack.shape}; it was {then} when opened")
            self._stack, self._seen = stack, now
        return self._stack

    def _fetch(self, file: IO[bytes], start: int, stop: int) -> bytes:
        file.seek(start)
        found = file.read(stop - start)
        if len(found) < stop - start:
            raise TruncatedError(self.path, f"cut short: pixels lie at bytes {start} to {stop}, behind its end")
        return found

    def identity(self) -> str:
        """Size and time of the file."""
        told = (str(Path(self.path).resolve()), *_stamp(self.path))
        return hashlib.sha256(repr(told).encode()).hexdigest()[:32]


def _stamp(path: str) -> tuple[int, int, int]:
    """Size and times of a file; that of its last change nobody can set back."""
    about = Path(path).stat()
    return about.st_size, about.st_mtime_ns, about.st_ctime_ns


def spatial(volume: Volume, patch: Sequence[int]) -> tuple[int, ...]:
    """The axes that a patch is cut from: the last ones; those before are channels."""
    return volume.shape[len(volume.shape) - len(patch) :]
