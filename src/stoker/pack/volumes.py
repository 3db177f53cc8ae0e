"""Volumes, to Zarr arrays with chunks that match the patch."""

import os
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from stoker.errors import MissingExtraError, OtherTypeError, UsageError
from stoker.loader.source import zarrs
from stoker.loader.source.volume import ZARR, spatial
from stoker.pack.found import FoundVolumes
from stoker.pack.plan import VERSION, Options, Output, Plan
from stoker.pack.sources import HERE, Sources

_COPIES = 4
_STORED_COPIES = 3
"""Of a store, chunks are in memory as they came, too."""
_SAVING = 0.7
"""A guess of what compression leaves of a scan; only the estimate depends on it."""


def make_plan(found: FoundVolumes, options: Options) -> Plan:
    """An array for each volume."""
    files = found.names
    if options.patch is None:
        raise UsageError("volumes are laid out for a patch; name its size, such as --patch 72,136,136")
    if options.shuffle:
        raise UsageError("patches of volumes are drawn at random when they are loaded; leave --shuffle out")
    outputs = []
    for file, name in zip(files, _names(files), strict=True):
        volume = found.volume(file)
        shape = spatial(volume, options.patch)
        if len(shape) < len(options.patch) or any(s < p for s, p in zip(shape, options.patch, strict=True)):
            raise OtherTypeError(file, f"has shape {volume.shape}, which is smaller than the patch {options.patch}")
        count = int(np.prod(volume.shape, dtype=np.int64)) * volume.dtype.itemsize
        outputs.append(Output(f"{name}{ZARR}", 0, 1, int(count * (_SAVING if options.compress else 1))))
    return Plan(
        version=VERSION,
        kind="volumes",
        files=tuple(found.file(file, 1) for file in files),
        rows=len(files),
        row_bytes=float(zarrs.SHARD_BYTES),
        seed=None,
        settings={
            "patch": ",".join(map(str, options.patch)),
            "compress": options.compress,
            **({"missing": options.missing} if options.missing != "raise" else {}),
        },
        pieces=(),
        outputs=tuple(outputs),
        writer=f"tensorstore {_installed()}",
    )


def _names(files: Sequence[str]) -> list[str]:
    """What the volumes are called from now on: as their files, with as much of the path as tells them apart."""
    whole = [Path(file).absolute() for file in files]  # a link is called as it is, not as what it leads to
    shared = Path(os.path.commonpath([one.parent for one in whole]))
    for name in (
        lambda one: one.name.partition(".")[0],
        lambda one: one.name.removesuffix(one.suffix),
        lambda one: "-".join(part.removesuffix(ZARR) for part in one.relative_to(shared).with_suffix("").parts),
    ):
        found = [name(one) for one in whole]
        if len(set(found)) == len(found) and not any(one.startswith(".") or not one for one in found):
            return found
    twice = next(name for name in found if found.count(name) > 1 or name.startswith("."))
    raise UsageError(f"two volumes would become {twice}{ZARR}, or none has a name; pack them into different folders")


def _installed() -> str:
    try:
        return version("tensorstore")
    except PackageNotFoundError as error:
        raise MissingExtraError("tensorstore", "volumes") from error


def need_bytes(plan: Plan) -> int:
    """The most memory that one piece of work takes."""
    stored = _STORED_COPIES if "://" in plan.files[0].path else 0
    return (_COPIES + stored) * zarrs.SHARD_BYTES


def spill(plan: Plan, number: int, folder: Path | None, sources: Sources = HERE) -> None:
    """Volumes are not shuffled."""


def saved(plan: Plan, folder: Path) -> None:
    """Volumes are not shuffled."""


def write(
    plan: Plan,
    number: int,
    place: Path,
    spills: Sequence[Any],  # noqa: ARG001  every layout has this signature
    sources: Sources = HERE,
) -> tuple[int, None]:
    """Write an array, shard by shard; returns 1."""
    volume = sources.volume(plan.files[number], fill_missing=plan.settings.get("missing") == "fill")
    patch = tuple(int(part) for part in str(plan.settings["patch"]).split(","))
    chunk = zarrs.chunks_for(patch, volume.shape)
    compress = bool(plan.settings["compress"])
    store = zarrs.create(place, volume.shape, volume.dtype.newbyteorder("="), chunk, compress=compress)
    for box in zarrs.boxes(volume.shape, zarrs.shard_for(volume.shape, chunk, volume.dtype.itemsize)):
        sources.go_on()
        store[box].write(volume.read(box)).result()
    return 1, None
