"""Records of one size, from `.npy` shards to `.npy` shards; rows are bytes here, whatever their fields."""

import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.errors import OtherTypeError, TruncatedError, UsageError
from stoker.loader.source.header import header_of, literal, read_header
from stoker.pack import keys
from stoker.pack.found import Found
from stoker.pack.hashing import Hashing
from stoker.pack.plan import VERSION, Options, Output, Piece, Plan, count_for, split
from stoker.pack.sources import HERE, Sources
from stoker.pack.spill import STEP_BYTES, RecordSpill, SavedRecords, buffers, read_exactly, steps

_HEAD_BYTES = 1 << 12
"""What nearly every header fits into."""
_VERSION_AT = 6
"""Where a file's header has the version of the format."""


def make_plan(found: Found, options: Options) -> Plan:
    """Shards of about one size."""
    files = found.names
    if options.compress:
        raise UsageError("records are mapped as they lie, so they are never compressed; leave --compress out")
    headers = [header_of(file, opened, found.nbytes(file)) for file, opened in found.each(first=_HEAD_BYTES)]
    first = headers[0]
    for file, header in zip(files, headers, strict=True):
        if header.row_dtype != first.row_dtype:
            raise OtherTypeError(file, f"a row is {header.row_dtype}; expected {first.row_dtype}, as in {files[0]}")
        there = (found.nbytes(file) - header.offset) // header.row_bytes
        if there < header.shape[0]:
            raise TruncatedError(file, f"cut short: the header says {header.shape[0]} rows, {there} are there", there)
    rows = sum(header.shape[0] for header in headers)
    total, each = rows * first.row_bytes, min(options.shard_bytes, options.memory_bytes // 8)
    count = min(rows, count_for(total, each))
    runs = keys.runs(options.seed, rows, count) if options.shuffle else split(rows, count)
    descr = repr(np.lib.format.dtype_to_descr(first.dtype))
    settings = {"descr": descr, "shape": ",".join(map(str, first.shape[1:]))}
    return Plan(
        version=VERSION,
        kind="records",
        files=tuple(found.file(file, header.shape[0]) for file, header in zip(files, headers, strict=True)),
        rows=rows,
        row_bytes=float(first.row_bytes),
        seed=options.seed if options.shuffle else None,
        settings=settings,
        pieces=tuple(Piece(*run) for run in split(rows, count_for(total, each))) if options.shuffle else (),
        outputs=tuple(
            Output(f"records-{number:05}-of-{len(runs):05}.npy", start, stop, 128 + (stop - start) * first.row_bytes)
            for number, (start, stop) in enumerate(runs)
        ),
        writer=f"numpy format {_header(settings, rows)[_VERSION_AT]}.0",
    )


def need_bytes(plan: Plan) -> int:
    """The most memory that one piece of work takes."""
    if plan.seed is None:
        return 2 * STEP_BYTES
    largest = max(
        *(piece.stop - piece.start for piece in plan.pieces), *(out.stop - out.start for out in plan.outputs), 1
    )
    return int(2.2 * largest * (plan.row_bytes + 16))


def spill(plan: Plan, number: int, folder: Path | None, sources: Sources = HERE) -> RecordSpill | None:
    """Deal a piece out; into a folder, or into memory if there is none."""
    assert plan.seed is not None
    piece = plan.pieces[number]
    shape = piece.stop - piece.start, int(plan.row_bytes)
    rows = np.empty(shape, np.uint8) if folder is None else buffers.get("rows", *shape)
    at = 0
    for part in _read(plan, piece.start, piece.stop, sources):
        rows[at : at + len(part)] = part
        at += len(part)
    dealt = RecordSpill(keys.keys(plan.seed, piece.start, piece.stop), rows, len(plan.outputs))
    if folder is None:
        return dealt
    dealt.save(folder)
    return None


def saved(plan: Plan, folder: Path) -> SavedRecords:
    """A spill that was dealt out into a folder."""
    return SavedRecords(folder, int(plan.row_bytes))


def write(plan: Plan, number: int, place: Path, spills: Sequence[Any], sources: Sources = HERE) -> tuple[int, str]:
    """Write an output; returns its rows and its SHA-256."""
    output = plan.outputs[number]
    rows = output.stop - output.start
    with place.open("wb") as plain:
        file = Hashing(plain)
        file.write(_header(plan.settings, rows))
        if plan.seed is None:  # a small part at a time, which then stays in the cache from read to write
            for part in _read(plan, output.start, output.stop, sources):
                file.write(part.data)
        else:
            for part in _sorted(number, rows, int(plan.row_bytes), spills):
                file.write(part.data)
    return rows, file.hashed.hexdigest()


def _header(settings: Mapping[str, Any], rows: int) -> bytes:
    """The first bytes of a file: version 1.0 of the format or, for names that it has no letters for, 3.0."""
    shape = tuple(int(side) for side in settings["shape"].split(",") if side)
    said = {"descr": literal(settings["descr"]), "fortran_order": False, "shape": (rows, *shape)}
    written = io.BytesIO()
    try:
        np.lib.format.write_array_header_1_0(written, said)
    except UnicodeEncodeError:  # numpy has no public function for 3.0
        text = repr(said).encode()
        start = np.lib.format.magic(3, 0)
        padding = b" " * (-(len(start) + 4 + len(text) + 1) % np.lib.format.ARRAY_ALIGN)
        text += padding + b"\n"
        return start + len(text).to_bytes(4, "little") + text
    return written.getvalue()


def _sorted(number: int, rows: int, row_bytes: int, spills: Sequence[Any]) -> Iterator[NDArray[np.uint8]]:
    """An output's rows in the order of their keys, some at a time; each part is overwritten by the next."""
    found = [spill.keys(number) for spill in spills]
    order = np.argsort(np.concatenate(found))
    if all(isinstance(spill, RecordSpill) for spill in spills):
        owner = np.repeat(np.arange(len(spills)), [len(mine) for mine in found])[order]
        index = np.concatenate([spill.mine(number) for spill in spills])[order]
        for part in steps(rows, row_bytes):
            some = buffers.get("part", part.stop - part.start, row_bytes)
            for at in np.unique(owner[part]).tolist():
                where = owner[part] == at
                some[where] = spills[at].rows[index[part][where]]
            yield some
        return
    ranks = np.empty(rows, np.int64)
    ranks[order] = np.arange(rows)
    merged = buffers.get("merged", rows, row_bytes)
    at = 0
    for one, mine in zip(spills, found, strict=True):
        one.scatter(number, ranks[at : at + len(mine)], merged)
        at += len(mine)
    for part in steps(rows, row_bytes):
        yield merged[part]


def _read(plan: Plan, start: int, stop: int, sources: Sources) -> Iterator[NDArray[np.uint8]]:
    """Rows start … stop - 1 of all files, some at a time; each part is overwritten by the next."""
    first = 0
    for file in plan.files:
        rows = file.rows or 0
        low, high = max(start, first) - first, min(stop, first + rows) - first
        if low < high:
            with sources.local(file) as path:
                yield from _read_file(path, low, high, int(plan.row_bytes))
        first += rows


def _read_file(path: str, low: int, high: int, row_bytes: int) -> Iterator[NDArray[np.uint8]]:
    offset = read_header(path).offset
    with Path(path).open("rb", buffering=0) as source:
        source.seek(offset + low * row_bytes)
        for part in steps(high - low, row_bytes):
            some = buffers.get("read", part.stop - part.start, row_bytes)
            got = read_exactly(source, some)
            if got < some.size:
                row = low + part.start + got // row_bytes
                raise TruncatedError(path, "was cut short while it was read", row)
            yield some
