"""What goes where: a record that says it all, knows nothing of how it is done, and round-trips through JSON."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

from stoker.errors import ChangedError, UsageError
from stoker.loader.source.paths import nbytes
from stoker.records.codec import decode, encode
from stoker.records.observed import Value

VERSION = 1
OTHER = "has changed since the plan was made; make a new plan"
Kind = Literal["records", "rows", "text", "volumes", "images"]


@dataclass(frozen=True, slots=True)
class Options:
    """What a user can choose."""

    shuffle: bool = False
    seed: int = 0
    compress: bool = False
    shard_bytes: int = 256_000_000
    memory_bytes: int = 1 << 30
    row_group: int | None = None
    patch: tuple[int, ...] | None = None
    missing: Literal["raise", "fill"] = "raise"
    size: tuple[int, ...] | None = None
    raw: bool = False
    quality: int = 90
    tokenizer: str | None = None
    column: str = "text"
    documents: Literal["line", "file"] = "line"
    end: str | None = None


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file (or a volume's folder) as it was when the plan was made."""

    path: str
    """Or the address of an object, or of a volume, in a store."""
    bytes: int
    rows: int | None
    stamp: str
    """Changes when the file does, as far as its size and time tell; of an object, its size and ETag."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of source rows that is read at once and dealt out to the outputs; of text, a whole file."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Output:
    """A file to be written: rows start … stop - 1 or, shuffled, as many rows, those whose keys fall to its number."""

    name: str
    start: int
    stop: int
    bytes: int
    """About how large it will be."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A re-layout. Whoever carries it out, with the same libraries, writes the same bytes."""

    version: int
    kind: Kind
    files: tuple[SourceFile, ...]
    rows: int | None
    """None: not known before the text is read."""
    row_bytes: float
    """Memory that a row takes, on average."""
    seed: int | None
    """Of the global shuffle; None keeps the order."""
    settings: Mapping[str, Value]
    pieces: tuple[Piece, ...]
    """Of a shuffled plan: what the first pass deals out."""
    outputs: tuple[Output, ...]
    writer: str
    """The library that decides the bytes."""
    folders: tuple[str, ...] = ()
    """Folders that were named as sources: a result inside one would be a source itself the next time."""

    @property
    def source_bytes(self) -> int:
        """What has to be read."""
        return sum(file.bytes for file in self.files)

    @property
    def output_bytes(self) -> int:
        """About what will be written."""
        return sum(output.bytes for output in self.outputs)

    @property
    def dealt_bytes(self) -> int:
        """About what all rows take in memory, and on disk between the two passes of a shuffle."""
        tokens = 2 * self.output_bytes if self.kind == "text" else 0  # they take four bytes until they are written
        return max(self.source_bytes, int((self.rows or 0) * (self.row_bytes + 8)), tokens)

    def digest(self) -> str:
        """The plan in a few characters."""
        return hashlib.sha256(to_json(self).encode()).hexdigest()[:32]


def to_json(plan: Plan) -> str:
    """The plan as text; the same plan is always the same text."""
    return json.dumps(encode(plan), indent=1, sort_keys=True) + "\n"


def from_json(text: str | bytes, where: str) -> Plan:
    """The plan that `to_json` made a text of."""
    try:
        plan = decode(Plan, json.loads(text))
    except ValueError as error:
        raise UsageError(f"{where} is no plan: {error}") from error
    if plan.version != VERSION:
        raise UsageError(f"{where} is a plan of version {plan.version}; this Stoker carries out version {VERSION}")
    for output in plan.outputs:
        if Path(output.name).name != output.name or output.name.startswith("."):
            raise UsageError(f"{where} names an output {output.name!r}; expected a plain file name")
    return plan


def stamp(path: str) -> str:
    """Changes when a file does, as far as its size and time tell; of a folder, those of all files in it."""
    at = Path(path)
    files = [at] if at.is_file() else sorted(one for one in at.rglob("*") if one.is_file())
    told = [(one.relative_to(at).as_posix(), one.stat().st_size, one.stat().st_mtime_ns) for one in files]
    return hashlib.sha256(repr(told).encode()).hexdigest()[:16]


def stored_stamp(*told: object) -> str:
    """Changes when what a store says of an object does."""
    return hashlib.sha256(repr(told).encode()).hexdigest()[:16]


def size(path: str) -> int:
    """The bytes of a file, or of all files in a folder."""
    at = Path(path)
    return sum(one.stat().st_size for one in at.rglob("*") if one.is_file()) if at.is_dir() else nbytes(path)


def source_file(path: str, rows: int | None) -> SourceFile:
    """A file as it is now."""
    return SourceFile(str(Path(path).resolve()), size(path), rows, stamp(path))


def check_unchanged(file: SourceFile) -> None:
    """Refuse a file that is not what it was when the plan was made."""
    try:
        now = stamp(file.path)
    except OSError:
        now = None
    if now is None or (not Path(file.path).exists()):
        raise ChangedError(file.path, "is not there any more; it was when the plan was made")
    if now != file.stamp:
        raise ChangedError(file.path, OTHER)


def split(rows: int, parts: int) -> list[tuple[int, int]]:
    """Runs of nearly equal size."""
    bounds = [rows * part // parts for part in range(parts + 1)]
    return list(pairwise(bounds))


def count_for(total_bytes: float, each_bytes: int) -> int:
    """How many outputs (or pieces) of about this size."""
    return max(1, -(-int(total_bytes) // max(1, each_bytes)))
