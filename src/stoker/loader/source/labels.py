"""The class of each image: from the first directory of its key, or from a table."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stoker.errors import NoDataError, UsageError
from stoker.loader.source.blocks import Ints
from stoker.loader.source.manifest import Manifest

NONE = -1
"""The label of an image in no directory."""

Table = str | os.PathLike[str] | Mapping[str, Any]


def from_directories(manifest: Manifest) -> tuple[Ints, tuple[str, ...]]:
    """The number of each image's first directory among all of them, sorted by name; and those names."""
    parts = pc.split_pattern(manifest.keys, "/", max_splits=1)
    nested = pc.greater(pc.list_value_length(parts), 1)
    folders = pc.if_else(nested, pc.list_element(parts, 0), None)
    names = tuple(sorted(name for name in pc.unique(folders).to_pylist() if name is not None))
    found = pc.index_in(folders, pa.array(names, folders.type), skip_nulls=True)
    return np.asarray(pc.fill_null(found, NONE).to_numpy(zero_copy_only=False), np.int64), names


def from_table(table: Table, manifest: Manifest) -> tuple[Manifest, Ints, tuple[str, ...]]:
    """The images that a table names, their labels, and the names of the classes. Text is sorted; numbers stay."""
    keys, labels, where = _columns(table)
    index = pc.index_in(keys.cast(manifest.keys.type), manifest.keys)
    if index.null_count:
        missing = keys.filter(pc.is_null(index))
        raise NoDataError(f"{len(missing)} keys of {where} are not below {manifest.url}; the first is {missing[0]}")
    rows = index.to_numpy(zero_copy_only=False).astype(np.int64)
    if len(np.unique(rows)) < len(rows):
        raise UsageError(f"{where} names an image twice; expected one label for each key")
    order = np.argsort(rows)
    numbers, names = _numbered(labels, where)
    return manifest.take(rows[order]), numbers[order], names


def keys_of(table: Table) -> list[str]:
    """The keys that a table names, each once."""
    return list(dict.fromkeys(_columns(table)[0].to_pylist()))


def _numbered(labels: Any, where: str) -> tuple[Ints, tuple[str, ...]]:
    if labels.null_count:
        raise UsageError(f"{where} has {labels.null_count} keys without a label")
    if pa.types.is_integer(labels.type):
        try:
            return labels.cast(pa.int64()).to_numpy(zero_copy_only=False), ()
        except pa.ArrowException as error:
            raise UsageError(f"the labels of {where} do not fit into 64 bits with a sign ({error})") from error
    if not (pa.types.is_string(labels.type) or pa.types.is_large_string(labels.type)):
        raise UsageError(f"the labels of {where} are {labels.type}; expected whole numbers or text")
    names = sorted(pc.unique(labels).to_pylist())
    found = pc.index_in(labels, pa.array(names, labels.type))
    return found.to_numpy(zero_copy_only=False).astype(np.int64), tuple(names)


def _columns(table: Table) -> tuple[Any, Any, str]:
    if isinstance(table, Mapping):
        try:
            return pa.array(list(table), pa.large_string()), pa.array(list(table.values())), "labels"
        except (pa.ArrowException, TypeError, OverflowError) as error:
            raise UsageError(
                f"the labels cannot be read ({error}); expected text keys and labels that are all whole numbers, or "
                "all text"
            ) from error
    path = Path(table)
    if not path.is_file():
        raise NoDataError(f"labels is {path}, which is not there; expected a .csv or .parquet with key and label")
    try:
        found = _read(path)
    except (pa.ArrowException, OSError) as error:
        raise UsageError(f"labels is {path}, which cannot be read: {error}") from error
    if not {"key", "label"} <= set(found.column_names):
        raise UsageError(f"{path} has the columns {', '.join(found.column_names)}; expected key and label")
    return found["key"].combine_chunks(), found["label"].combine_chunks(), str(path)


def _read(path: Path) -> Any:
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        return pq.read_table(path)
    if path.suffix == ".csv":
        from pyarrow import csv

        return csv.read_csv(path, convert_options=csv.ConvertOptions(column_types={"key": pa.large_string()}))
    raise UsageError(f"labels is {path}; expected a .csv or .parquet with key and label")
