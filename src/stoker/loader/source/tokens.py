"""Files of tokens: the documents of a text, tokenised once, mapped ever after.

    64 bytes: magic | tokens | where documents begin (int64) | a CRC for each MiB of tokens | what it is (JSON) | tail

All is written once, front to back, so that a file of any size needs little memory; the tail is the last thing written.
"""

import json
import os
import struct
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from stoker.errors import CorruptError, EmptyFileError, OtherTypeError, TruncatedError
from stoker.loader.source.paths import nbytes

SUFFIX = ".tokens"
CHECK_BYTES = 1 << 20
"""The tokens that one CRC stands for."""

_MAGIC = b"STKTOKN1"
_FIRST = 64
_TAIL = struct.Struct("<QQI8s")  # bytes of JSON, bytes before the offsets, CRC of offsets, CRCs and JSON; magic


def narrowest(largest: int) -> np.dtype[Any]:
    """The dtype in which every token fits."""
    return np.dtype("<u2") if largest < 1 << 16 else np.dtype("<u4")


class Writer:
    """Writes a file of tokens beside its place and moves it there once it is whole."""

    def __init__(self, path: Path, dtype: np.dtype[Any], said: Mapping[str, Any]) -> None:
        self.path = path
        self.tokens = 0
        self.documents = 0
        self._dtype = dtype
        self._said = dict(said)
        self._lengths: list[NDArray[np.int64]] = []
        self._checks: list[int] = []
        self._pending = b""
        self._partial = path.with_name(f"{path.name}.partial-{os.getpid()}")
        self._file = self._partial.open("wb")
        self._file.write(_MAGIC.ljust(_FIRST, b"\0"))

    def add(self, tokens: NDArray[Any], lengths: NDArray[np.int64]) -> None:
        """Documents after each other, and how long each is."""
        self._lengths.append(lengths)
        self.tokens += len(tokens)
        self.documents += len(lengths)
        raw = self._pending + tokens.astype(self._dtype).tobytes()
        whole = len(raw) // CHECK_BYTES * CHECK_BYTES
        self._put(raw[:whole])
        self._pending = raw[whole:]

    def _put(self, raw: bytes) -> None:
        self._file.write(raw)
        self._checks += [zlib.crc32(raw[at : at + CHECK_BYTES]) for at in range(0, len(raw), CHECK_BYTES)]

    def finish(self, **said: Any) -> None:
        """The rest of the file; after this it stands in its place."""
        self._put(self._pending)
        self._file.write(b"\0" * (-self._file.tell() % 8))
        lengths = np.concatenate([np.zeros(1, np.int64), *self._lengths])
        about = {**self._said, **said, "dtype": self._dtype.str, "tokens": self.tokens, "documents": self.documents}
        rest = np.cumsum(lengths).astype("<i8").tobytes() + np.array(self._checks, "<u4").tobytes()
        text = json.dumps(about, sort_keys=True).encode()
        start = self._file.tell()
        self._file.write(rest + text + _TAIL.pack(len(text), start, zlib.crc32(rest + text), _MAGIC))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._partial.replace(self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):  # a full disk fails here once more, with what was not written yet
            self._file.close()
        self._partial.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class TokenFile:
    """A file of tokens, checked as far as can be without reading all of it."""

    path: str
    about: Mapping[str, Any]
    offsets: NDArray[np.int64]
    """Where each document begins, and where the last one ends."""
    checks: NDArray[np.uint32]
    size: int

    @property
    def tokens(self) -> int:
        """How many there are."""
        return int(self.offsets[-1])

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of a token."""
        return np.dtype(str(self.about["dtype"]))

    def map(self) -> NDArray[Any]:
        """The tokens, mapped."""
        if not self.tokens:
            return np.empty(0, self.dtype)
        return np.memmap(self.path, self.dtype, "r", _FIRST, (self.tokens,))

    def verify(self, tokens: NDArray[Any], blocks: Iterable[int]) -> None:
        """Compare these MiBs of `tokens`, which are all of this file's, with their CRCs."""
        step = CHECK_BYTES // self.dtype.itemsize
        for block in blocks:
            if zlib.crc32(tokens[block * step : (block + 1) * step].data) != self.checks[block]:
                row = int(np.searchsorted(self.offsets, block * step, side="right")) - 1
                raise CorruptError(self.path, f"MiB {block} of its tokens does not match its checksum", row)


def read(path: str) -> TokenFile:
    """Open a file of tokens; its tokens are not touched."""
    size = nbytes(path)
    if size == 0:
        raise EmptyFileError(path, "the file is empty; expected tokens")
    with Path(path).open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise CorruptError(path, "is not a file of tokens")
        if size < _FIRST + _TAIL.size:
            raise TruncatedError(path, "cut short: its end is missing")
        file.seek(size - _TAIL.size)
        text_bytes, start, check, magic = _TAIL.unpack(file.read(_TAIL.size))
        if magic != _MAGIC or not _FIRST <= start <= size - _TAIL.size - text_bytes:
            raise TruncatedError(path, "cut short: its end is missing")
        file.seek(start)
        rest = file.read(size - _TAIL.size - start)
    if zlib.crc32(rest) != check:
        raise CorruptError(path, "what it says of itself does not match its checksum")
    about = json.loads(rest[len(rest) - text_bytes :])
    offsets = np.frombuffer(rest, "<i8", about["documents"] + 1)
    checks = np.frombuffer(rest[: len(rest) - text_bytes], "<u4", offset=offsets.nbytes)
    if about["dtype"] not in ("<u2", "<u4"):
        raise OtherTypeError(path, f"its tokens are {about['dtype']}; expected 16 or 32 bits")
    return TokenFile(path, about, offsets.astype(np.int64, copy=False), checks, size)
