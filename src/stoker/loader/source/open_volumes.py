"""From what a user named to a source of patches: volumes found, labels matched to them."""

import os
import re
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal

import numpy as np

from stoker.errors import UsageError
from stoker.loader.source import paths
from stoker.loader.source.volume import find
from stoker.loader.source.volume_remote import Arrays
from stoker.loader.source.volume_remote import find as find_remote
from stoker.loader.source.volumes import CACHE, GROUP, Sampling, VolumeSource

Labels = paths.Paths | Mapping[str, paths.Paths]

_RESERVED = ("patch", "volume", "corner")


def open_volumes(
    given: paths.Paths,
    *,
    patch: Sequence[int],
    labels: Labels | None = None,
    patches: int | None = None,
    sampling: Sampling = "uniform",
    foreground: float = 0.0,
    group: int = GROUP,
    missing: Literal["raise", "fill"] = "raise",
    cache: str | os.PathLike[str] | None = None,
    on_error: Literal["raise", "skip"] = "raise",
    **store: Any,
) -> "VolumeSource":
    """Patches of Zarr arrays and TIFF stacks: `patch`, the number of its `volume`, its `corner`, and label windows.

    An epoch has `patches` patches of each volume (default: as many as have the volume's voxels), at corners drawn anew
    each epoch, `group` of them from one read. `foreground` is the share drawn so that they hold a voxel of the first
    label that is not 0. `sampling="grid"` covers each volume instead, always at the same corners.
    """
    _check(patch, patches, sampling, foreground, group, missing)
    named = labels if isinstance(labels, Mapping) else {} if labels is None else {"label": labels}
    for name in named:
        if name in _RESERVED:
            raise UsageError(f"a label is called {name}, which is taken; call it something else")
    if foreground and not named:
        raise UsageError(f"foreground is {foreground} and there are no labels to find it in; name them with labels=")
    stores: list[Arrays] = []
    images = _find(given, stores, {"cache": cache, **store})
    matched = {name: _match(images, _find(one, stores, {"cache": cache, **store}), name) for name, one in named.items()}
    if store and not stores:
        raise UsageError(f"{next(iter(store))}= goes with volumes of a store, such as s3://bucket/*.zarr")
    return VolumeSource(
        paths.absolute(images),
        {name: paths.absolute(every) for name, every in matched.items()},
        patch=tuple(patch),
        patches=patches,
        sampling=sampling,
        foreground=foreground,
        group=group,
        missing=missing,
        cache=str(paths.at_home(cache or CACHE).absolute()),
        on_error=on_error,
        stores=stores,
    )


def _find(given: paths.Paths, stores: list[Arrays], how: dict[str, Any]) -> list[str]:
    """The volumes that were named: paths, or addresses of arrays that are added to `stores`."""
    if not paths.is_remote(given):
        return find(given)
    found, arrays = find_remote(paths.addresses(given), **how)
    stores.append(arrays)
    return found


def _check(
    patch: Sequence[int], patches: int | None, sampling: str, foreground: float, group: int, missing: str
) -> None:
    if isinstance(patch, int | str) or not patch or any(not _is_count(part) for part in patch):
        raise UsageError(f"patch is {patch!r}; expected a size for each axis, such as (72, 136, 136)")
    if sampling not in ("uniform", "grid"):
        raise UsageError(f"sampling is {sampling!r}; expected 'uniform' or 'grid'")
    if sampling == "grid" and (patches is not None or foreground):
        raise UsageError("sampling='grid' covers each volume once; patches= and foreground= go with 'uniform'")
    if patches is not None and not _is_count(patches):
        raise UsageError(f"patches is {patches!r}; expected how many to draw from each volume, from 1 on")
    if not _is_count(group):
        raise UsageError(f"group is {group!r}; expected how many patches to cut from one read, from 1 on")
    if not 0 <= foreground <= 1:
        raise UsageError(f"foreground is {foreground}; expected a share from 0 to 1")
    if missing not in ("raise", "fill"):
        raise UsageError(f"missing is {missing!r}; expected 'raise' or 'fill'")


def _is_count(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and int(value) > 0


def _match(images: list[str], labels: list[str], name: str) -> list[str]:
    """The label volume of each image volume: by name, by the number in their names, or by what tells them apart."""
    if len(labels) != len(images):
        raise UsageError(f"there are {len(images)} volumes and {len(labels)} of {name}; expected one for each")
    for key in (_stems, _numbers, _differences):
        wanted, found = key(images), dict(zip(key(labels), labels, strict=True))
        if len(found) == len(labels) and found.keys() == set(wanted):
            return [found[one] for one in wanted]
    lone = next((image for image, one in zip(images, wanted, strict=True) if one not in found), images[0])
    raise UsageError(
        f"{lone} may go with {labels[images.index(lone)]} as its {name} or with another, as their names differ; "
        "call them alike, or number them alike"
    )


def _stems(every: list[str]) -> list[Any]:
    return [Path(one).name.partition(".")[0] for one in every]


def _numbers(every: list[str]) -> list[Any]:
    return [tuple(re.findall(r"\d+", Path(one).name)) for one in every]


def _differences(every: list[str]) -> list[Any]:
    """The words of each path, folders included, without those that all of them begin or end with; and its numbers."""
    words = [re.findall(r"[^\W_]+", str(Path(one).absolute())) for one in every]
    first = _shared(words)
    last = _shared([one[first:][::-1] for one in words])
    return [(*one[first : len(one) - last], number) for one, number in zip(words, _numbers(every), strict=True)]


def _shared(words: list[list[str]]) -> int:
    """How many words all begin with."""
    return sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, zip(*words, strict=False)))
