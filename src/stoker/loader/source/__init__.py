"""Where samples live: one file per kind of data, and `open`, which finds the kind."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Literal

from stoker.errors import UsageError
from stoker.loader.source import paths as _paths
from stoker.loader.source.interface import Source

_KINDS = {".npy": "stoker.loader.source.npy.NpySource", ".parquet": "stoker.loader.source.parquet.ParquetSource"}


def open(  # noqa: A001  stoker.open is what users write
    paths: _paths.Paths,
    *,
    columns: Sequence[str] | None = None,
    on_error: Literal["raise", "skip"] = "raise",
) -> Source:
    """Open files as one source of rows: a path, a directory, a glob or a list of these; files sorted by name.

    `columns` chooses fields. With `on_error="skip"`, files that cannot be opened are left out and listed.
    """
    files = _paths.find(paths, list(_KINDS))
    kinds = {Path(file).suffix for file in files}
    if len(kinds) > 1:
        raise UsageError(f"the files are of several kinds ({', '.join(sorted(kinds))}); open one kind at a time")
    kind = kinds.pop()
    if kind not in _KINDS:
        raise UsageError(f"{files[0]} is of no kind that can be opened; expected {', '.join(_KINDS)}")
    module, _, name = _KINDS[kind].rpartition(".")
    source: Source = getattr(import_module(module), name)(files, columns=columns, on_error=on_error)
    return source
