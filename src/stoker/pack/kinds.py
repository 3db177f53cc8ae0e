"""Which module plans and writes which kind of data."""

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

from stoker.errors import UsageError
from stoker.loader.source import paths, volume
from stoker.pack.plan import Options, Plan

_TEXT = (".jsonl", ".ndjson", ".txt", ".jsonl.gz", ".jsonl.zst", ".ndjson.gz", ".ndjson.zst", ".txt.gz", ".txt.zst")
_IMAGES = paths.IMAGES


class Layout(Protocol):
    """How one kind of data is planned and written; a module for each."""

    def make_plan(self, files: Sequence[str], options: Options) -> Plan:
        """What goes where."""

    def need_bytes(self, plan: Plan) -> int:
        """The most memory that one piece of work takes."""

    def spill(self, plan: Plan, number: int, folder: Path | None) -> Any:
        """The first pass of a shuffle over one piece: dealt out into a folder, or into memory if there is none."""

    def saved(self, plan: Plan, folder: Path) -> Any:
        """A spill that was dealt out into a folder."""

    def write(self, plan: Plan, number: int, place: Path, spills: Sequence[Any]) -> tuple[int, str | None]:
        """Write an output; returns its rows and, if it is one file that was hashed on the way, its SHA-256."""


def layout(kind: str) -> Layout:
    """The module of a kind."""
    return cast("Layout", import_module(f"stoker.pack.{kind}"))


def plan_for(given: Sequence[str], options: Options) -> Plan:
    """What goes where, for the kind of data that is there."""
    kind, files = _find(given, options)
    folders = tuple(str(Path(one).resolve()) for one in given if Path(one).is_dir())
    return replace(layout(kind).make_plan(files, options), folders=folders)


def _find(given: Sequence[str], options: Options) -> tuple[str, list[str]]:
    if options.patch is not None:
        return "volumes", volume.find(list(given))
    if options.size is not None:
        return "images", list(given)
    if options.raw:
        raise UsageError("--raw is for images; name their size too, such as --size 224")
    if options.tokenizer is not None:
        return "text", paths.find(list(given), [*_TEXT, ".parquet"])
    files = paths.find(list(given), [".npy", ".parquet", *_TEXT, *volume.TIFF, *_IMAGES])
    suffixes = {Path(file).suffix for file in files}
    if len(suffixes) > 1:
        raise UsageError(f"the files are of several kinds ({', '.join(sorted(suffixes))}); pack one kind at a time")
    suffix = suffixes.pop()
    kinds = {".npy": "records", ".parquet": "rows"}
    if suffix in kinds:
        return kinds[suffix], files
    if files[0].endswith(_TEXT):
        raise UsageError(f"{files[0]} is text; say how to tokenise it with --tokenizer tokenizer.json")
    if suffix in (*volume.TIFF, volume.ZARR) or "zarr" in files[0]:
        raise UsageError(f"{files[0]} is a volume; name the size of a patch, such as --patch 72,136,136")
    if suffix in _IMAGES:
        raise UsageError(f"{files[0]} is an image; name the size to pack it at, such as --size 256")
    raise UsageError(f"{files[0]} is of no kind that can be packed; expected .npy, .parquet, text, images or volumes")
