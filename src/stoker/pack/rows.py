"""Rows of Parquet files, to Parquet files with row groups of a chosen size."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stoker.errors import CorruptError, EmptyFileError, NoDataError, OtherTypeError
from stoker.loader.source.paths import nbytes
from stoker.pack import keys
from stoker.pack.plan import VERSION, Options, Output, Piece, Plan, count_for, source_file, split
from stoker.pack.spill import SavedTable, TableSpill, merge

_GROUP_BYTES = 1 << 20
_TABLE = "table.arrow"
_COPIES = 4
"""Reading, taking and writing a table holds it so many times."""


def make_plan(files: Sequence[str], options: Options) -> Plan:
    """Shards of about one size, each with row groups of one number of rows."""
    opened = [_open(file) for file in files]
    first = opened[0].schema_arrow
    for file, one in zip(files, opened, strict=True):
        if not one.schema_arrow.equals(first):
            raise OtherTypeError(file, f"has the columns {_tell(one.schema_arrow)}; expected {_tell(first)}")
    if options.shuffle:
        _check_columns(files[0], first)
    rows = sum(one.metadata.num_rows for one in opened)
    if not rows:
        raise NoDataError(f"there is no row in {len(files)} files, the first of which is {files[0]}")
    row_bytes = _row_bytes(files[0], next(one for one in opened if one.metadata.num_rows))
    each = min(options.shard_bytes, options.memory_bytes // (4 * _COPIES))
    count = min(rows, count_for(rows * row_bytes, each))
    runs = keys.runs(options.seed, rows, count) if options.shuffle else split(rows, count)
    stored = sum(Path(file).stat().st_size for file in files) / rows
    group = options.row_group or int(np.clip(_GROUP_BYTES / row_bytes, 100, 100_000))
    return Plan(
        version=VERSION,
        kind="rows",
        files=tuple(source_file(file, one.metadata.num_rows) for file, one in zip(files, opened, strict=True)),
        rows=rows,
        row_bytes=row_bytes,
        seed=options.seed if options.shuffle else None,
        settings={"row_group": group, "compression": "zstd" if options.compress else "none"},
        pieces=tuple(_pieces(opened, row_bytes, each)) if options.shuffle else (),
        outputs=tuple(
            Output(
                f"rows-{number:05}-of-{len(runs):05}.parquet",
                start,
                stop,
                int((stop - start) * (stored if options.compress else row_bytes)),
            )
            for number, (start, stop) in enumerate(runs)
        ),
        writer=f"pyarrow {pa.__version__}",
    )


def _open(file: str) -> pq.ParquetFile:
    if nbytes(file) == 0:
        raise EmptyFileError(file, "the file is empty; expected Parquet")
    try:
        return pq.ParquetFile(file)
    except (OSError, pa.ArrowException) as error:
        raise CorruptError(file, f"cannot be read as Parquet ({error})") from error


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


def _row_bytes(path: str, file: pq.ParquetFile) -> float:
    try:
        table = file.read_row_group(0)
    except (OSError, pa.ArrowException) as error:
        raise CorruptError(path, f"row group 0 cannot be read ({error})", 0) from error
    each: float = table.nbytes / max(1, table.num_rows)
    return max(1.0, each)


def _pieces(files: Sequence[pq.ParquetFile], row_bytes: float, each: int) -> Iterator[Piece]:
    """Whole row groups, as many as fit."""
    start = stop = 0
    for file in files:
        for group in range(file.metadata.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            if stop > start and (stop + rows - start) * row_bytes > each:
                yield Piece(start, stop)
                start = stop
            stop += rows
    if stop > start:
        yield Piece(start, stop)


def need_bytes(plan: Plan) -> int:
    """The most memory that one piece of work takes."""
    runs: list[Piece | Output] = [*plan.pieces, *plan.outputs]
    largest = max(one.stop - one.start for one in runs)
    return int(_COPIES * largest * (plan.row_bytes + 8))


def spill(plan: Plan, number: int, folder: Path | None) -> TableSpill | None:
    """Deal a piece out; into a folder, or into memory if there is none."""
    assert plan.seed is not None
    piece = plan.pieces[number]
    dealt = TableSpill(
        _read(plan, piece.start, piece.stop), keys.keys(plan.seed, piece.start, piece.stop), len(plan.outputs)
    )
    if folder is None:
        return dealt
    dealt.save(folder / _TABLE)
    return None


def saved(plan: Plan, folder: Path) -> SavedTable:  # noqa: ARG001  every layout has this signature
    """A spill that was dealt out into a folder."""
    return SavedTable(folder / _TABLE)


def write(plan: Plan, number: int, place: Path, spills: Sequence[Any]) -> tuple[int, None]:
    """Write an output; returns its rows."""
    output = plan.outputs[number]
    if plan.seed is None:
        table = _read(plan, output.start, output.stop)
    else:
        table = merge([spill.slice(number) for spill in spills])
    pq.write_table(
        table, place, row_group_size=plan.settings["row_group"], compression=str(plan.settings["compression"])
    )
    return int(table.num_rows), None


def _read(plan: Plan, start: int, stop: int) -> pa.Table:
    """Rows start … stop - 1 of all files."""
    parts, first = [], 0
    for source in plan.files:
        rows = source.rows or 0
        low, high = max(start, first), min(stop, first + rows)
        if low < high:
            parts.append(_read_file(source.path, low - first, high - first))
        first += rows
    return pa.concat_tables(parts).combine_chunks()


def _read_file(path: str, start: int, stop: int) -> pa.Table:
    with _open(path) as file:
        wanted: list[int] = []
        at = skip = 0
        for group in range(file.metadata.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            if at < stop and at + rows > start:
                skip = skip if wanted else start - at
                wanted.append(group)
            at += rows
        try:
            return file.read_row_groups(wanted).slice(skip, stop - start)
        except (OSError, pa.ArrowException) as error:
            raise CorruptError(path, f"row groups {wanted[0]} to {wanted[-1]}: {error}", start) from error
