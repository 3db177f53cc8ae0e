"""What a .npy file says of itself, parsed and checked; its data is not touched."""

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from stoker.errors import CorruptError, EmptyFileError, OtherTypeError, TruncatedError
from stoker.loader.source.paths import nbytes

_HEADER_MOST = 1 << 16
_MAGIC = b"\x93NUMPY"
_PREFIX = 12  # magic, version, and the length of the header
_UTF8_SINCE = 3
_TRIES = 50


@dataclass(frozen=True, slots=True)
class Header:
    """What a .npy file says of itself."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int

    @property
    def row_dtype(self) -> np.dtype[Any]:
        """The dtype of one row: of an element of the first axis."""
        return np.dtype((self.dtype, self.shape[1:])) if len(self.shape) > 1 else self.dtype

    @property
    def row_bytes(self) -> int:
        """The size of one row."""
        return int(np.prod(self.shape[1:], dtype=np.int64)) * self.dtype.itemsize


def read_header(path: str) -> Header:
    """Parse and check a file's header; the data is not touched."""
    size = nbytes(path)
    with Path(path).open("rb") as file:
        return header_of(path, file, size)


def header_of(path: str, file: IO[bytes], size: int) -> Header:
    """The header of an open file of this size."""
    if size == 0:
        raise EmptyFileError(path, "the file is empty; expected a .npy header and rows")
    head = file.read(_PREFIX)
    return header_in(path, head + file.read(header_bytes(path, head) - len(head)))


def header_bytes(path: str, head: bytes) -> int:
    """Where a header ends, as its first bytes say."""
    if not (end := header_end(head)):
        raise CorruptError(path, f"starts with {head[:6]!r}; expected a .npy file")
    if end > _PREFIX + _HEADER_MOST:
        raise CorruptError(path, f"its header claims {end} bytes; expected at most {_HEADER_MOST}")
    return end


def header_end(head: bytes) -> int:
    """Where a header ends; 0 if it is none."""
    if head[:6] != _MAGIC or len(head) < _PREFIX:
        return 0
    # Version 1 has a length of two bytes, later ones of four.
    start, length = (10, head[8:10]) if head[6] == 1 else (12, head[8:12])
    return start + int.from_bytes(length, "little")


def header_in(path: str, data: bytes) -> Header:
    """The header that a file begins with."""
    end = header_bytes(path, data)
    if len(data) < end:
        raise TruncatedError(path, "the file ends inside its header")
    text = data[10 if data[6] == 1 else 12 : end]
    return _parse(path, text.decode("latin-1" if data[6] < _UTF8_SINCE else "utf-8"), end)


def literal(text: str) -> Any:
    """`ast.literal_eval`, also while other threads parse: Python 3.11 counts the depth of all of them together, and
    fails where a collection of garbage lets another one in. Tried again, not locked: a fork could copy a closed lock.
    """
    for _ in range(_TRIES):
        try:
            return ast.literal_eval(text)
        except SystemError:
            continue
    return ast.literal_eval(text)


def _parse(path: str, text: str, offset: int) -> Header:
    try:
        said = literal(text)
        dtype = np.lib.format.descr_to_dtype(said["descr"])
        shape, fortran = tuple(int(n) for n in said["shape"]), bool(said["fortran_order"])
    except (ValueError, SyntaxError, KeyError, TypeError) as error:
        raise CorruptError(path, f"its header cannot be read ({error})") from error
    if dtype.hasobject:
        raise OtherTypeError(path, "holds pickled Python objects; expected numbers (nothing is ever unpickled)")
    if not shape:
        raise OtherTypeError(path, "holds a single value; expected an array of rows")
    if fortran and len(shape) > 1:
        raise OtherTypeError(path, "is in Fortran order, so a row is not contiguous; save np.ascontiguousarray(array)")
    if shape[0] == 0 or dtype.itemsize == 0 or 0 in shape:
        raise EmptyFileError(path, f"has no row (shape {shape})")
    return Header(dtype, shape, offset)
