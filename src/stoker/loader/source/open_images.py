"""From an address or a folder to a source of images: listing, labels, cache."""

import inspect
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow.compute as pc

from stoker.errors import CorruptError, DataError, NoDataError, UsageError
from stoker.loader.cache import Cache, Shelf, disk_bytes, kept
from stoker.loader.source import labels as _labels
from stoker.loader.source import listing, paths
from stoker.loader.source.augment import Crop
from stoker.loader.source.decode import Decoder
from stoker.loader.source.images import ImageSource
from stoker.loader.source.interface import Skipped
from stoker.loader.source.manifest import Manifest
from stoker.loader.source.remote import Remote, check_scheme, local_folder
from stoker.loader.source.shrink import QUALITY
from stoker.loader.source.subset import Subset, choose

SUFFIXES = paths.IMAGES


def open_images(
    url: str | os.PathLike[str],
    *,
    size: Any = None,
    crop: Crop | None = None,
    flip: bool = False,
    labels: _labels.Table | None = None,
    cache: str | os.PathLike[str] | None = None,
    cache_bytes: int | str | None = None,
    cache_side: int | None = None,
    requests: int | None = None,
    hedge: bool = True,
    timeout_s: float = 30.0,
    retries: int = 8,
    relist: bool = False,
    store_options: Mapping[str, Any] | None = None,
    on_error: Literal["raise", "skip"] = "raise",
    **unknown: Any,
) -> ImageSource:
    """Images below an address or a folder, as one source."""
    if unknown:
        known = [name for name in inspect.signature(open_images).parameters if name not in ("url", "unknown")]
        raise UsageError(f"{next(iter(unknown))} is not an argument for images; expected {', '.join(known)}")
    decoder = Decoder(check_size(size), _check_crop(crop), bool(flip))
    listing.check_requests(requests, timeout_s, retries)
    listing.check_cache(cache, cache_bytes)
    _check_side(cache, cache_side)
    check_scheme(os.fspath(url))
    folder = local_folder(os.fspath(url)) or (None if "://" in os.fspath(url) else Path(url))
    # A table names what is wanted: what else lies there may be as it is.
    left_out: list[Skipped] | None = None if on_error == "raise" and labels is None else []
    if folder is not None and cache is None:
        return _source(list_folder(folder, left_out), labels, on_error, left_out, decoder=decoder)
    address = os.fspath(url) if folder is None else f"file://{folder.resolve()}"
    remote = Remote(address, timeout_s=timeout_s, retries=retries, options=store_options)
    form = "" if cache_side is None else f"jpeg {QUALITY}, side {cache_side}"
    shelf = None if cache is None else Shelf(paths.at_home(cache).absolute(), address, form)
    # A plain web server cannot list: a table says what there is.
    named = _labels.keys_of(labels) if labels is not None and address.startswith("http") else None
    if folder is not None:  # a store of files says nothing of links that lead nowhere
        list_folder(folder, left_out)
    manifest, fresh = listing.listed(remote, shelf, named, relist=relist, keep=not left_out)
    how = {"decoder": decoder, "remote": remote, "requests": requests, "hedge": hedge}
    source = _source(manifest, labels, on_error, left_out, **how)
    if shelf is not None:
        budget = listing.budget_bytes(cache_bytes)
        listed = source.manifest if named is None else manifest
        source.attach(shelf, *_shelve(shelf, source.manifest, listed, budget, fresh), cache_side)
    return source


def _source(
    manifest: Manifest, labels: _labels.Table | None, on_error: str, left_out: list[Skipped] | None, **how: Any
) -> ImageSource:
    lower = pc.utf8_lower(manifest.keys)
    is_image = pc.or_kleene(
        pc.match_substring_regex(lower, f"({'|'.join(s.replace('.', '[.]') for s in SUFFIXES)})$"),
        labels is not None,  # a table says itself what its images are
    )
    rows = np.flatnonzero(is_image.to_numpy(zero_copy_only=False))
    if not len(rows):
        raise NoDataError(f"no image is below {manifest.url}; expected {', '.join(SUFFIXES)}")
    images = manifest.take(rows)
    skipped: tuple[Skipped, ...] = ()
    if on_error == "skip":
        images, skipped = _without_empty(images)
        skipped = (*(left_out or ()), *skipped)
    if labels is None:
        numbers, names = _labels.from_directories(images)
    else:
        images, numbers, names = _labels.from_table(labels, images)
    if "remote" not in how:
        images = replace(images, url=paths.absolute([images.url])[0])
    source = ImageSource(images, numbers, names, **how)
    source.skipped = skipped
    return source


def _without_empty(manifest: Manifest) -> tuple[Manifest, tuple[Skipped, ...]]:
    empty = np.flatnonzero(manifest.sizes == 0)
    skipped = tuple(Skipped(manifest.address(row), 0, 1, "the object is empty") for row in empty.tolist())
    return manifest.take(np.flatnonzero(manifest.sizes > 0)), skipped


def _shelve(
    shelf: Shelf, manifest: Manifest, listed: Manifest, cache_bytes: int | None, fresh: bool
) -> tuple[Cache, int]:
    """Reserve a part of the directory's budget for all that is listed, and find the objects that it keeps."""
    wanted = disk_bytes(listed.sizes)
    with shelf.alone():
        before = int(shelf.note().get("reserved_bytes", 0))
        if cache_bytes is None:
            cache_bytes = shelf.budget_bytes()
        granted = shelf.reserve(wanted, cache_bytes)
        staged = [choose(manifest, Subset.parse(one)) for one in shelf.note().get("staged", [])]
    at = pc.index_in(manifest.keys, listed.keys).to_numpy()
    keep = kept(listed, granted, at[np.unique(np.concatenate(staged))] if staged else None)
    if fresh or granted < before:
        Cache(shelf, listed, keep).evict(granted)
    return Cache(shelf, manifest, keep[at]), cache_bytes


def list_folder(folder: Path, left_out: list[Skipped] | None = None) -> Manifest:
    """The images below a local folder, in key order.

    One whose name is no text, or that is not there, is an error, or goes into `left_out`.
    """
    if not folder.is_dir():
        raise NoDataError(f"{folder} does not exist, or is not a folder; expected a folder of images")
    listed = []
    for path in paths.walk(folder):
        if path.suffix.lower() not in SUFFIXES or not paths.is_data(path):
            continue
        try:
            listed.append({"path": _key(path, folder), "size": paths.nbytes(path)})
        except DataError as bad:
            if left_out is None:
                raise
            left_out.append(Skipped(bad.path, 0, 1, bad.reason))
    return Manifest.of(str(folder), listed)


def _key(path: Path, folder: Path) -> str:
    key = path.relative_to(folder).as_posix()
    try:
        key.encode()
    except UnicodeEncodeError as error:
        told = os.fsencode(path).decode(errors="backslashreplace")
        raise CorruptError(told, "its name is not UTF-8; rename it") from error
    return key


def check_size(size: Any) -> tuple[int, int]:
    """(height, width) as the user gave it."""
    pair = (size, size) if isinstance(size, int) and not isinstance(size, bool) else size
    if pair is None:
        raise UsageError("size is needed to open images: size=(224, 224), as height and width")
    try:
        height, width = pair
    except (TypeError, ValueError):
        raise UsageError(f"size is {size!r}; expected height and width, such as (224, 224)") from None
    if not all(isinstance(n, int) and 1 <= n <= 1 << 14 for n in (height, width)):
        raise UsageError(f"size is {size!r}; expected whole numbers from 1 to {1 << 14}")
    return height, width


def _check_crop(crop: Any) -> Crop | None:
    if crop not in (None, "center", "random"):
        raise UsageError(f"crop is {crop!r}; expected None, 'center' or 'random'")
    return crop  # type: ignore[no-any-return]  # checked above


def _check_side(cache: Any, side: Any) -> None:
    if cache is None and side is not None:
        raise UsageError("cache_side needs cache='directory'")
    if side is not None and (not isinstance(side, int) or not 1 <= side <= 1 << 14):
        raise UsageError(f"cache_side is {side!r}; expected the shorter side in pixels, from 1 to {1 << 14}")
