"""Rows of Parquet files, to Parquet files with row groups of a chosen size."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stoker.errors import CorruptError, EmptyFileError, NoDataError, OtherTypeError
from stoker.loader.source.paths import nbytes
from stoker.pack import keys
from stoker.pack.found import Found
from stoker.pack.plan import VERSION, Options, Output, Piece, Plan, count_for, split
from stoker.pack.sources import HERE, Sources
from stoker.pack.spill import SavedTable, TableSpill, merge

_GROUP_BYTES = 1 << 20
_TABLE = "table.arrow"
_LOOKED_AT, _LOOK_BYTES, _LOOK_ROWS = 16, 1 << 20, 1 << 14
"""Row groups of which a part is decoded before a plan is made, for what rows take in memory, and how large a part."""
_LOOKERS = 4
_TAIL_BYTES = 1 << 16
"""Arrow reads as much of a file's end at once; most footers fit."""
_BATCH_BYTES, _BUFFER_BYTES = 1 << 22, 1 << 20
"""What is decoded, and read, at once."""
_COPIES = 4
"""Reading, taking and writing a table holds it so many times."""


def make_plan(found: Found, options: Options) -> Plan:
    """Shards of about one size, each with row groups of one number of rows."""
    files = found.names
    footers, schema = _footers(found)
    if options.shuffle:
        _check_columns(files[0], schema)
    rows = sum(one.num_rows for one in footers)
    if not rows:
        raise NoDataError(f"there is no row in {len(files)} files, the first of which is {files[0]}")
    groups = _groups(found, footers)
    total = sum(group.bytes for group in groups)
    row_bytes = total / rows
    each = min(options.shard_bytes, options.memory_bytes // (4 * _COPIES))
    count = min(rows, count_for(total, each))
    runs = keys.runs(options.seed, rows, count) if options.shuffle else _even(groups, count)
    pieces = list(_pieces(groups, each)) if options.shuffle else []
    held = [(b - a) * row_bytes for a, b in runs] if options.shuffle else _held(groups, runs)
    stored = sum(map(found.nbytes, files)) / rows
    group = options.row_group or int(np.clip(_GROUP_BYTES / row_bytes, 100, 100_000))
    return Plan(
        version=VERSION,
        kind="rows",
        files=tuple(found.file(file, one.num_rows) for file, one in zip(files, footers, strict=True)),
        rows=rows,
        row_bytes=row_bytes,
        seed=options.seed if options.shuffle else None,
        settings={
            "row_group": group,
            "compression": "zstd" if options.compress else "none",
            "largest_bytes": int(max([*held, *_held(groups, pieces)])),
        },
        pieces=tuple(Piece(*run) for run in pieces),
        outputs=tuple(
            Output(
                f"rows-{number:05}-of-{len(runs):05}.parquet",
                start,
                stop,
                int((stop - start) * stored if options.compress else memory_bytes),
            )
            for number, ((start, stop), memory_bytes) in enumerate(zip(runs, held, strict=True))
        ),
        writer=f"pyarrow {pa.__version__}",
    )


def _footers(found: Found) -> tuple[list[pq.FileMetaData], pa.Schema]:
    """What each file says of its rows, and the columns that all of them have."""
    footers: list[pq.FileMetaData] = []
    first: pa.Schema | None = None
    for name, file in found.each(last=_TAIL_BYTES):
        with _open(name, file, found.nbytes(name)) as one:
            first = one.schema_arrow if first is None else first
            if not one.schema_arrow.equals(first):
                raise OtherTypeError(name, f"has the columns {_tell(one.schema_arrow)}; expected {_tell(first)}")
            footers.append(one.metadata)
    return footers, first


def _open(path: str, file: IO[bytes] | None = None, size: int | None = None) -> pq.ParquetFile:
    if (nbytes(path) if size is None else size) == 0:
        raise EmptyFileError(path, "the file is empty; expected Parquet")
    try:
        return pq.ParquetFile(path if file is None else file, buffer_size=_BUFFER_BYTES, pre_buffer=False)
    except (OSError, pa.ArrowException) as error:
        raise CorruptError(path, f"cannot be read as Parquet ({error})") from error


def _check_columns(file: str, schema: pa.Schema) -> None:
    """Refuse what Arrow has no way to take rows out of."""
    for column in schema:
        try:
            pa.schema([column]).empty_table().take(pa.array([], pa.int64()))
        except pa.ArrowNotImplementedError as error:
            raise OtherTypeError(
                file,
                f"column {column.name} is {column.type}, which pyarrow {pa.__version__} cannot shuffle; write it as "
                "another type, or leave --shuffle out",
            ) from error


def _tell(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


@dataclass(frozen=True, slots=True)
class _Group:
    """A row group: its first row among those of all files, and about what its rows take in memory."""

    start: int
    stop: int
    bytes: float


def _groups(found: Found, footers: Sequence[pq.FileMetaData]) -> list[_Group]:
    """All row groups. What a few of them take once decoded, for a byte of the file, is taken for all."""
    places = [
        (name, footer.row_group(number), number)
        for name, footer in zip(found.names, footers, strict=True)
        for number in range(footer.num_row_groups)
        if footer.row_group(number).num_rows
    ]
    some = np.unique(np.linspace(0, len(places) - 1, min(_LOOKED_AT, len(places))).astype(int)).tolist()
    with ThreadPoolExecutor(_LOOKERS) as pool:  # in a store each of them waits for several answers
        looks = list(pool.map(lambda at: _look(found, *places[at]), some))
    growth = sum(held for held, _ in looks) / max(1.0, sum(stored for _, stored in looks))
    groups, start = [], 0
    for _, group, _ in places:
        held = max(float(group.num_rows), growth * group.total_byte_size)  # rows of nulls take nothing
        groups.append(_Group(start, start + group.num_rows, held))
        start += group.num_rows
    return groups


def _look(found: Found, path: str, group: Any, number: int) -> tuple[float, float]:
    """Memory that the first rows of a row group take, and what they take in the file, not compressed."""
    each = max(1.0, group.total_byte_size / group.num_rows)
    rows = int(np.clip(_LOOK_BYTES / each, 1, _LOOK_ROWS))
    try:
        with found.open(path) as file, _open(path, file, found.nbytes(path)) as opened:
            batch = next(opened.iter_batches(rows, row_groups=[number], use_threads=False))
    except (OSError, pa.ArrowException, StopIteration) as error:
        raise CorruptError(path, f"row group {number} cannot be read ({error})", 0) from error
    share = batch.num_rows / group.num_rows
    return sum(_column_bytes(column, share) for column in batch.columns), each * batch.num_rows


def _column_bytes(column: pa.Array, share: float) -> float:
    """Memory of some rows of a column; a dictionary serves all rows of the group."""
    if pa.types.is_dictionary(column.type):
        return float(column.indices.nbytes + share * column.dictionary.nbytes)
    return float(column.nbytes)


def _even(groups: Sequence[_Group], count: int) -> list[tuple[int, int]]:
    """Runs of rows that take about the same memory; none is empty."""
    ends = np.cumsum([group.bytes for group in groups])
    bounds = np.interp(np.linspace(0, ends[-1], count + 1), [0, *ends], [0, *(group.stop for group in groups)])
    rows = np.arange(count + 1)
    last = groups[-1].stop
    bounds = np.maximum.accumulate(np.maximum(bounds.astype(np.int64) - rows, 0)) + rows
    return list(pairwise(np.minimum(bounds, last - count + rows).tolist()))


def _held(groups: Sequence[_Group], runs: Sequence[tuple[int, int]]) -> list[float]:
    """About the memory of runs of rows."""
    ends, stops = np.cumsum([0, *(group.bytes for group in groups)]), [0, *(group.stop for group in groups)]
    found: list[float] = np.diff(np.interp(np.array(runs).reshape(-1, 2), stops, ends), axis=1).ravel().tolist()
    return found


def _pieces(groups: Sequence[_Group], each: int) -> Iterator[tuple[int, int]]:
    """Whole row groups, as many as fit; parts of one that does not."""
    start = stop = 0
    held = 0.0
    for group in groups:
        if stop > start and held + group.bytes > each:
            yield start, stop
            start, held = stop, 0.0
        parts = split(group.stop - group.start, min(group.stop - group.start, count_for(group.bytes, each)))
        for low, high in parts[:-1]:
            yield group.start + low, group.start + high
            start = group.start + high
        stop, held = group.stop, held + group.bytes / len(parts)
    if stop > start:
        yield start, stop


def need_bytes(plan: Plan) -> int:
    """The most memory that one piece of work takes."""
    runs: list[Piece | Output] = [*plan.pieces, *plan.outputs]
    largest = max(one.stop - one.start for one in runs)
    held = int(plan.settings.get("largest_bytes") or largest * plan.row_bytes)  # plans had no such setting once
    return _COPIES * (held + 8 * largest)


def spill(plan: Plan, number: int, folder: Path | None, sources: Sources = HERE) -> TableSpill | None:
    """Deal a piece out; into a folder, or into memory if there is none."""
    assert plan.seed is not None
    piece = plan.pieces[number]
    table = _read(plan, piece.start, piece.stop, sources)
    dealt = TableSpill(table, keys.keys(plan.seed, piece.start, piece.stop), len(plan.outputs))
    if folder is None:
        return dealt
    dealt.save(folder / _TABLE)
    return None


def saved(plan: Plan, folder: Path) -> SavedTable:  # noqa: ARG001  every layout has this signature
    """A spill that was dealt out into a folder."""
    return SavedTable(folder / _TABLE)


def write(plan: Plan, number: int, place: Path, spills: Sequence[Any], sources: Sources = HERE) -> tuple[int, None]:
    """Write an output; returns its rows."""
    output = plan.outputs[number]
    if plan.seed is None:
        table = _read(plan, output.start, output.stop, sources)
    else:
        table = merge([spill.slice(number) for spill in spills])
    pq.write_table(
        table, place, row_group_size=plan.settings["row_group"], compression=str(plan.settings["compression"])
    )
    return int(table.num_rows), None


def _read(plan: Plan, start: int, stop: int, sources: Sources) -> pa.Table:
    """Rows start … stop - 1 of all files."""
    parts, first = [], 0
    for source in plan.files:
        rows = source.rows or 0
        low, high = max(start, first), min(stop, first + rows)
        if low < high:
            with sources.local(source) as path:
                parts.append(_read_file(path, low - first, high - first, plan.row_bytes))
        first += rows
    return pa.concat_tables(parts).combine_chunks()


def _read_file(path: str, start: int, stop: int, row_bytes: float) -> pa.Table:
    """Rows of a file, without holding others: a row group may be far larger than what is wanted of it."""
    with _open(path) as file:
        wanted: list[int] = []
        at = skip = 0
        for group in range(file.metadata.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            if at < stop and at + rows > start:
                skip = skip if wanted else start - at
                wanted.append(group)
            at += rows
        parts, left = [], stop - start
        at_once = int(np.clip(_BATCH_BYTES / row_bytes, 1, 1 << 16))
        try:
            for batch in file.iter_batches(at_once, row_groups=wanted):
                part = batch.slice(skip, left)
                skip = max(0, skip - batch.num_rows)
                if part.num_rows:
                    parts.append(part)
                    left -= part.num_rows
                if not left:
                    break
        except (OSError, pa.ArrowException) as error:
            raise CorruptError(path, f"row groups {wanted[0]} to {wanted[-1]}: {error}", start) from error
        return pa.Table.from_batches(parts, file.schema_arrow)
