"""Where samples live: one file per kind of data, and `open`, which finds the kind."""

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from stoker.errors import UsageError
from stoker.loader import check
from stoker.loader.source import paths as _paths

if TYPE_CHECKING:
    from stoker.loader.source.interface import Source

_KINDS = {".npy": "stoker.loader.source.npy.NpySource", ".parquet": "stoker.loader.source.parquet.ParquetSource"}


# Kinds that need to be told how to make rows, by the option that tells.
_BY_OPTION = {
    "length": ("stoker.loader.source.open_text", "open_text"),
    "patch": ("stoker.loader.source.open_volumes", "open_volumes"),
}
_NEEDS = {
    **dict.fromkeys([".jsonl", ".ndjson", ".txt"], "tokenizer='tokenizer.json' and length=512"),
    ".tokens": "length=512",
    **dict.fromkeys([".zarr", ".tif", ".tiff"], "patch=(72, 136, 136)"),
}


_OF_A_STORE = ("cache", "cache_bytes", "requests", "hedge", "timeout_s", "retries", "relist", "store_options")


def _call(opener: Callable[..., "Source"], paths: _paths.Paths, options: dict[str, Any]) -> "Source":
    every = list(inspect.signature(opener).parameters.values())[1:]
    known = [one.name for one in every if one.kind != one.VAR_KEYWORD]
    if len(known) < len(every):
        known += [name for name in _OF_A_STORE if name not in known]
    unknown = [name for name in options if name not in known]
    if unknown:
        raise UsageError(f"{unknown[0]}= is no option here; there are {', '.join(known)}")
    return opener(paths, **options)


def open(  # noqa: A001  stoker.open is what users write
    paths: _paths.Paths,
    *,
    columns: Sequence[str] | None = None,
    on_error: Literal["raise", "skip"] = "raise",
    **options: Any,
) -> "Source":
    """Open files as one source of rows: a path, a directory, a glob or a list of these; files sorted by name.

    `columns` chooses fields of .npy and Parquet. With `on_error="skip"`, files that cannot be opened are left out and
    listed. Addresses of a store, such as s3://bucket/train/, take `cache="directory"` and more: docs/remote.md. Images
    take `size=`, text `tokenizer=` and `length=`, volumes `patch=`: docs/volumes-and-text.md.
    """
    check.one_of("on_error", on_error, ("raise", "skip"))
    paths = paths if isinstance(paths, str | os.PathLike) else list(paths)  # it is looked at more than once
    given = options if columns is None else {"columns": columns, **options}
    for mark, (home, opener) in _BY_OPTION.items():
        if mark in options:
            return _call(getattr(import_module(home), opener), paths, {"on_error": on_error, **given})
    if isinstance(paths, str | os.PathLike) and _is_images(paths, options):
        from stoker.loader.source.open_images import open_images

        return open_images(paths, on_error=on_error, **given)
    if "cache" in options or _paths.is_remote(paths):
        from stoker.loader.source.open_tables import open_tables

        return _call(open_tables, paths, {"on_error": on_error, **given})
    if options:
        told = " and ".join(f"{mark}=" for mark in _BY_OPTION)
        raise UsageError(
            f"{next(iter(options))} is not an argument for {paths}; expected columns and on_error (or {told}, for text "
            "and volumes)"
        )
    files = _paths.find(paths, list(_KINDS))
    kinds = {Path(file).suffix for file in files}
    if len(kinds) > 1:
        raise UsageError(f"the files are of several kinds ({', '.join(sorted(kinds))}); open one kind at a time")
    kind = kinds.pop()
    if kind in _NEEDS:
        raise UsageError(f"{files[0]} needs {_NEEDS[kind]} to become rows")
    if kind not in _KINDS:
        raise UsageError(f"{files[0]} is of no kind that can be opened; expected {', '.join(_KINDS)}")
    module, _, name = _KINDS[kind].rpartition(".")
    source: Source = getattr(import_module(module), name)(_paths.absolute(files), columns=columns, on_error=on_error)
    return source


def _is_images(path: str | os.PathLike[str], options: Mapping[str, Any]) -> bool:
    if "://" in os.fspath(path):
        return "size" in options or Path(path).suffix.lower() in _paths.IMAGES
    if not Path(path).is_dir():
        return False
    suffixes = (file.suffix.lower() for file in _paths.walk(path))
    first = next((suffix for suffix in suffixes if suffix in _KINDS or suffix in _paths.IMAGES), None)
    return first in _paths.IMAGES or (first is None and "size" in options)
