"""Which module plans and writes which kind of data."""

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

from stoker.errors import UsageError
from stoker.loader.source import paths, volume
from stoker.pack.found import Found, FoundVolumes, Here
from stoker.pack.plan import Options, Plan
from stoker.pack.sources import HERE, Sources

_TEXT = (".jsonl", ".ndjson", ".txt", ".jsonl.gz", ".jsonl.zst", ".ndjson.gz", ".ndjson.zst", ".txt.gz", ".txt.zst")
_IMAGES = paths.IMAGES


class Layout(Protocol):
    """How one kind of data is planned and written; a module for each."""

    def make_plan(self, found: Any, options: Options) -> Plan:
        """What goes where."""

    def need_bytes(self, plan: Plan) -> int:
        """The most memory that one piece of work takes."""

    def spill(self, plan: Plan, number: int, folder: Path | None, sources: Sources = HERE) -> Any:
        """The first pass of a shuffle over one piece: dealt out into a folder, or into memory if there is none."""

    def saved(self, plan: Plan, folder: Path) -> Any:
        """A spill that was dealt out into a folder."""

    def write(
        self, plan: Plan, number: int, place: Path, spills: Sequence[Any], sources: Sources = HERE
    ) -> tuple[int, str | None]:
        """Write an output; returns its rows and, if it is one file that was hashed on the way, its SHA-256."""


def layout(kind: str) -> Layout:
    """The module of a kind."""
    return cast("Layout", import_module(f"stoker.pack.{kind}"))


def plan_for(given: Sequence[str], options: Options) -> Plan:
    """What goes where, for the kind of data that is there: paths, or addresses of one store."""
    given = [one.removeprefix("file://") for one in given]  # those need no store's client
    kind, found = _find(given, options)
    folders = tuple(str(Path(one).resolve()) for one in given if Path(one).is_dir())
    return replace(layout(kind).make_plan(found, options), folders=folders)


def _find(given: list[str], options: Options) -> tuple[str, Found | FoundVolumes]:
    if options.patch is not None:
        return "volumes", _volumes(given)
    if options.size is not None:
        return "images", _images(given)
    if options.raw:
        raise UsageError("--raw is for images; name their size too, such as --size 224")
    if options.tokenizer is not None:
        return "text", _files(given, [*_TEXT, ".parquet"])
    found = _files(given, [".npy", ".parquet", *_TEXT, *volume.TIFF, *_IMAGES])
    return _kind(found.names), found


def _files(given: list[str], suffixes: Sequence[str]) -> Found:
    if not paths.is_remote(given):
        return Here(paths.find(given, suffixes))
    from stoker.pack import in_store

    return in_store.find(given, suffixes)


def _volumes(given: list[str]) -> FoundVolumes:
    if not paths.is_remote(given):
        return Here(volume.find(given))
    from stoker.pack.stored_volumes import StoredVolumes

    return StoredVolumes(paths.addresses(given))


def _images(given: list[str]) -> Found:
    if not paths.is_remote(given):
        return Here(given)
    if len(given) > 1 or given[0].lower().endswith(_IMAGES):
        raise UsageError("images are packed by the folder that holds their classes; name one folder")
    from stoker.pack import in_store

    return in_store.find([f"{given[0].rstrip('/')}/"], _IMAGES, any_case=True)


def _kind(files: Sequence[str]) -> str:
    suffixes = {Path(file).suffix for file in files}
    if len(suffixes) > 1:
        raise UsageError(f"the files are of several kinds ({', '.join(sorted(suffixes))}); pack one kind at a time")
    suffix = suffixes.pop()
    kinds = {".npy": "records", ".parquet": "rows"}
    if suffix in kinds:
        return kinds[suffix]
    if files[0].endswith(_TEXT):
        raise UsageError(f"{files[0]} is text; say how to tokenise it with --tokenizer tokenizer.json")
    if suffix in (*volume.TIFF, volume.ZARR) or "zarr" in files[0]:
        raise UsageError(f"{files[0]} is a volume; name the size of a patch, such as --patch 72,136,136")
    if suffix in _IMAGES:
        raise UsageError(f"{files[0]} is an image; name the size to pack it at, such as --size 256")
    raise UsageError(f"{files[0]} is of no kind that can be packed; expected .npy, .parquet, text, images or volumes")
