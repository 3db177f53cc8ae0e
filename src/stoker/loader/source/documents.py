"""The documents of text files: JSON lines, plain lines, whole files or a Parquet column, some strings at a time."""

import io
import json
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from stoker.errors import CorruptError, DataError, EmptyFileError, OtherTypeError, UsageError
from stoker.loader.source.paths import nbytes

SUFFIXES = (".jsonl", ".ndjson", ".txt", ".parquet")
PACKED = (".gz", ".zst")
"""A file may be compressed as a whole; its name then ends so."""

Unit = Literal["line", "file"]
Opener = Callable[[str], AbstractContextManager[Any]]
"""A file by its name, to read bytes from."""
OnBad = Callable[[DataError], None]
"""Takes what is wrong with a document; returns if it is to be left out."""

_BATCH_CHARACTERS = 1 << 19
"""A tokenizer takes a hundred bytes and more for a token, and a token may be a character."""
_BATCH_DOCUMENTS = 4096
_LOOK_BYTES = 1 << 21
_BOM = b"\xef\xbb\xbf"
"""What some editors put before the first line; it is no part of the text."""


def suffix(path: str) -> str:
    """What kind of text a file's name says it is."""
    name = Path(path)
    return Path(name.stem).suffix if name.suffix in PACKED else name.suffix


def _local(path: str) -> Any:
    return Path(path).open("rb")


def batches(
    path: str, column: str, unit: Unit, on_bad: OnBad, *, opened: Opener = _local, size: int | None = None
) -> Generator[tuple[list[str], int], None, None]:
    """Documents of a file in its order, some at a time, and how many bytes of it were read so far.

    What is no file of this machine is `opened` in another way, and has a `size`.
    """
    size = nbytes(path) if size is None else size
    if size == 0:
        raise EmptyFileError(path, "the file is empty; expected text")
    kind = suffix(path)
    if kind == ".parquet":
        return _from_parquet(path, column, on_bad, opened, size)
    if kind not in SUFFIXES:
        raise UsageError(f"{path} is of no kind of text; expected {', '.join(SUFFIXES)}, maybe compressed")
    if kind == ".txt" and unit == "file":
        return _whole(path, on_bad, opened, size)
    take = _plain if kind == ".txt" else _json_of(column)
    return _from_lines(path, take, on_bad, opened, size)


def _from_lines(
    path: str, take: Callable[[str, bytes, int], str | None], on_bad: OnBad, opened: Opener, size: int
) -> Generator[tuple[list[str], int], None, None]:
    found: list[str] = []
    characters = 0
    with opened(path) as raw, _unpacked(path, raw) as lines:
        try:
            for number, line in enumerate(lines):
                try:
                    text = take(path, line if number else line.removeprefix(_BOM), number)
                except DataError as error:
                    on_bad(error)
                    continue
                if text is None:
                    continue
                found.append(text)
                characters += len(text)
                if characters > _BATCH_CHARACTERS or len(found) >= _BATCH_DOCUMENTS:
                    yield found, raw.tell()
                    found, characters = [], 0
        except OSError as error:
            raise CorruptError(path, f"cannot be decompressed ({error})") from error
    yield found, size


def growth(path: str, *, opened: Opener = _local) -> float:
    """How many bytes each byte of a compressed file becomes, as far as its beginning tells."""
    total = 0
    try:
        with opened(path) as raw, _unpacked(path, raw) as file:
            while raw.tell() < _LOOK_BYTES and (piece := file.read(1 << 20)):
                total += len(piece)
            return float(total / max(1, raw.tell()))
    except OSError:  # said when all of it is read
        return 1.0


def _unpacked(path: str, raw: io.BufferedReader) -> Any:
    if Path(path).suffix not in PACKED:
        return raw
    codec = "gzip" if path.endswith(".gz") else "zstd"
    return io.BufferedReader(pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), codec), 1 << 20)


def _json_of(column: str) -> Callable[[str, bytes, int], str | None]:
    def take(path: str, line: bytes, number: int) -> str | None:
        if not line.strip():
            return None
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise CorruptError(path, f"line {number + 1} is not JSON ({error})", number) from error
        if not isinstance(found, dict) or column not in found:
            has = ", ".join(map(str, found)) if isinstance(found, dict) else type(found).__name__
            raise CorruptError(path, f"line {number + 1} has no {column!r}; it has {has[:200]}", number)
        if not isinstance(found[column], str):
            kind = type(found[column]).__name__
            raise CorruptError(path, f"line {number + 1}: {column!r} is {kind}; expected text", number)
        try:
            found[column].encode()
        except UnicodeEncodeError as error:
            raise CorruptError(
                path, f"line {number + 1}: {column!r} is not Unicode ({error.reason})", number
            ) from error
        return str(found[column])

    return take


def _plain(path: str, line: bytes, number: int) -> str | None:
    return _decoded(path, line.rstrip(b"\r\n"), number, f"line {number + 1} ") if line.strip() else None


def _decoded(path: str, raw: bytes, row: int, what: str = "") -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise CorruptError(path, f"{what}is not UTF-8 ({error.reason} at byte {error.start})", row) from error


def _whole(path: str, on_bad: OnBad, opened: Opener, size: int) -> Generator[tuple[list[str], int], None, None]:
    try:
        with opened(path) as raw, _unpacked(path, raw) as file:
            content = file.read()
    except OSError as error:
        raise CorruptError(path, f"cannot be decompressed ({error})") from error
    texts = []
    try:
        texts.append(_decoded(path, content.removeprefix(_BOM), 0))
    except DataError as error:
        on_bad(error)
    yield texts, size


def _from_parquet(
    path: str, column: str, on_bad: OnBad, opened: Opener, size: int
) -> Generator[tuple[list[str], int], None, None]:
    row = 0
    try:
        # Arrow reads a file of this machine itself.
        with nullcontext(path) if opened is _local else opened(path) as place, pq.ParquetFile(place) as file:
            _check_column(path, file.schema_arrow, column)
            for batch in file.iter_batches(batch_size=_at_once(file.metadata, column), columns=[column]):
                texts = []
                for raw in batch.column(column).cast(pa.large_binary()).to_pylist():  # strings may be any bytes
                    try:
                        texts.append(_cell(path, column, raw, row))
                    except DataError as error:
                        on_bad(error)
                    row += 1
                yield texts, size * row // max(1, file.metadata.num_rows)
    except (OSError, pa.ArrowException) as error:
        raise CorruptError(path, f"cannot be read as Parquet ({error})", row or None) from error


def _at_once(metadata: Any, column: str) -> int:
    """As many documents as make a batch, by what they take in the file."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    chunks = [group.column(at) for group in groups for at in range(group.num_columns)]
    size: int = sum(chunk.total_uncompressed_size for chunk in chunks if chunk.path_in_schema == column)
    return max(1, min(_BATCH_DOCUMENTS, _BATCH_CHARACTERS * int(metadata.num_rows) // max(1, size)))


def _cell(path: str, column: str, raw: bytes | None, row: int) -> str:
    if raw is None:
        raise CorruptError(path, f"{column!r} is null; expected text", row)
    return _decoded(path, raw, row, f"{column!r} ")


def _check_column(path: str, schema: pa.Schema, column: str) -> None:
    if column not in schema.names:
        raise UsageError(f"{path} has no column {column!r}; it has {', '.join(schema.names)}. Choose one with column=")
    if (count := schema.names.count(column)) > 1:
        raise UsageError(f"{path} has {count} columns {column!r}; expected one. Choose another with column=")
    kind = schema.field(column).type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise OtherTypeError(path, f"column {column!r} is {kind}; expected text")
