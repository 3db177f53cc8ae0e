"""Records of one size, from `.npy` shards to `.npy` shards; rows are bytes here, whatever their fields."""

import ast
import hashlib
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.errors import OtherTypeError, TruncatedError, UsageError
from stoker.loader.source.header import read_header
from stoker.pack import keys
from stoker.pack.plan import VERSION, Options, Output, Piece, Plan, count_for, source_file, split
from stoker.pack.spill import RecordSpill, SavedRecords, deal

_COPY_BYTES = 1 << 20


def make_plan(files: Sequence[str], options: Options) -> Plan:
    """Shards of about one size."""
    if options.compress:
        raise UsageError("records are mapped as they lie, so they are never compressed; leave --compress out")
    headers = [read_header(file) for file in files]
    first = headers[0]
    for file, header in zip(files, headers, strict=True):
        if header.row_dtype != first.row_dtype:
            raise OtherTypeError(file, f"a row is {header.row_dtype}; expected {first.row_dtype}, as in {files[0]}")
        there = (Path(file).stat().st_size - header.offset) // header.row_bytes
        if there < header.shape[0]:
            raise TruncatedError(file, f"cut short: the header says {header.shape[0]} rows, {there} are there", there)
    rows = sum(header.shape[0] for header in headers)
    total, each = rows * first.row_bytes, min(options.shard_bytes, options.memory_bytes // 8)
    count = min(rows, count_for(total, each))
    names = [f"records-{number:05}-of-{count:05}.npy" for number in range(count)]
    if options.shuffle:
        sizes = keys.counts(options.seed, rows, count)
        bounds = np.concatenate([[0], np.cumsum(sizes)]).tolist()
        runs = list(pairwise(bounds))
    else:
        runs = split(rows, count)
    descr = repr(np.lib.format.dtype_to_descr(first.dtype))
    return Plan(
        version=VERSION,
        kind="records",
        files=tuple(source_file(file, header.shape[0]) for file, header in zip(files, headers, strict=True)),
        rows=rows,
        row_bytes=float(first.row_bytes),
        seed=options.seed if options.shuffle else None,
        settings={"descr": descr, "shape": ",".join(map(str, first.shape[1:]))},
        pieces=tuple(Piece(*run) for run in split(rows, count_for(total, each))) if options.shuffle else (),
        outputs=tuple(
            Output(name, start, stop, 128 + (stop - start) * first.row_bytes)
            for name, (start, stop) in zip(names, runs, strict=True)
        ),
        writer="numpy format 1.0",
    )


def need_bytes(plan: Plan) -> int:
    """The most memory that one piece of work takes."""
    if plan.seed is None:
        return 2 * _COPY_BYTES
    largest = max(
        *(piece.stop - piece.start for piece in plan.pieces), *(out.stop - out.start for out in plan.outputs), 1
    )
    return int(2.2 * largest * (plan.row_bytes + 16))


def spill(plan: Plan, number: int, folder: Path | None) -> RecordSpill | None:
    """Deal a piece out; into a folder, or into memory if there is none."""
    assert plan.seed is not None
    piece, row_bytes = plan.pieces[number], int(plan.row_bytes)
    found = keys.keys(plan.seed, piece.start, piece.stop)
    rows = np.empty((piece.stop - piece.start, row_bytes), np.uint8)
    at = 0
    for part in _read(plan, piece.start, piece.stop):
        rows[at : at + len(part)] = part
        at += len(part)
    order, bounds = deal(found, len(plan.outputs))
    dealt = RecordSpill(bounds, found[order], rows[order])
    if folder is None:
        return dealt
    dealt.save(folder)
    return None


def saved(plan: Plan, folder: Path) -> SavedRecords:
    """A spill that was dealt out into a folder."""
    return SavedRecords(folder, int(plan.row_bytes))


class _Hashing:
    """A file whose bytes are hashed while they are still in the processor's cache."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.hashed = hashlib.sha256()

    def write(self, data: Any) -> None:
        """Write all of it."""
        self.hashed.update(data)
        self._file.write(data)


def write(plan: Plan, number: int, place: Path, spills: Sequence[Any]) -> tuple[int, str]:
    """Write an output; returns its rows and its SHA-256."""
    output = plan.outputs[number]
    rows = output.stop - output.start
    with place.open("wb") as plain:
        file = _Hashing(plain)
        np.lib.format.write_array_header_1_0(file, _header(plan, rows))
        if plan.seed is None:  # a small part at a time, which then stays in the cache from read to write
            for part in _read(plan, output.start, output.stop):
                file.write(part.data)
        else:
            merged = _merge(plan, number, rows, spills)
            step = max(1, _COPY_BYTES // int(plan.row_bytes))
            for at in range(0, rows, step):
                file.write(merged[at : at + step].data)
    return rows, file.hashed.hexdigest()


def _header(plan: Plan, rows: int) -> dict[str, Any]:
    shape = tuple(int(side) for side in str(plan.settings["shape"]).split(",") if side)
    return {"descr": ast.literal_eval(str(plan.settings["descr"])), "fortran_order": False, "shape": (rows, *shape)}


def _merge(plan: Plan, number: int, rows: int, spills: Sequence[Any]) -> NDArray[np.uint8]:
    slices = [spill.slice(number)[0] for spill in spills]
    ranks = np.empty(rows, np.int64)
    ranks[np.argsort(np.concatenate(slices))] = np.arange(rows)
    merged = np.empty((rows, int(plan.row_bytes)), np.uint8)
    at = 0
    for one in spills:
        part = one.slice(number)[1]
        merged[ranks[at : at + len(part)]] = part
        at += len(part)
    return merged


def _read(plan: Plan, start: int, stop: int) -> Iterator[NDArray[np.uint8]]:
    """Rows start … stop - 1 of all files, some at a time."""
    row_bytes = int(plan.row_bytes)
    step = max(1, _COPY_BYTES // row_bytes)
    first = 0
    for file in plan.files:
        rows = file.rows or 0
        low, high = max(start, first), min(stop, first + rows)
        if low < high:
            offset = read_header(file.path).offset
            with Path(file.path).open("rb", buffering=0) as source:
                source.seek(offset + (low - first) * row_bytes)
                for at in range(low, high, step):
                    yield _exactly(source, file.path, min(step, high - at), row_bytes, at - first)
        first += rows


def _exactly(source: Any, path: str, rows: int, row_bytes: int, row: int) -> NDArray[np.uint8]:
    part = np.empty((rows, row_bytes), np.uint8)
    view, at = part.reshape(-1).data, 0
    while at < len(view):
        got = source.readinto(view[at:])
        if not got:
            raise TruncatedError(path, "was cut short while it was read", row + at // row_bytes)
        at += got
    return part
