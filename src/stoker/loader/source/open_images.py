"""From an address or a folder to a source of images: listing, labels, cache."""

import inspect
import logging
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow.compute as pc

from stoker.errors import CorruptError, DataError, NoDataError, UsageError
from stoker.loader.cache import Cache, Shelf, disk_bytes, kept, locked
from stoker.loader.source import labels as _labels
from stoker.loader.source import paths
from stoker.loader.source.augment import Crop
from stoker.loader.source.decode import Decoder
from stoker.loader.source.images import ImageSource
from stoker.loader.source.interface import Skipped
from stoker.loader.source.manifest import Manifest
from stoker.loader.source.remote import Remote, check_scheme, local_folder
from stoker.loader.source.shrink import QUALITY
from stoker.loader.source.subset import Subset, choose
from stoker.sizes import parse_bytes

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")
_FREE_SHARE = 0.8
_log = logging.getLogger("stoker.images")


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
    _check_requests(requests, timeout_s, retries)
    _check_cache(cache, cache_bytes, cache_side)
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
    manifest, fresh = _listing(remote, shelf, named, relist, left_out)
    how = {"decoder": decoder, "remote": remote, "requests": requests, "hedge": hedge}
    source = _source(manifest, labels, on_error, left_out, **how)
    if shelf is not None:
        budget = None if cache_bytes is None else parse_bytes(cache_bytes, "cache_bytes", least_bytes=1 << 20)
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


def _listing(
    remote: Remote, shelf: Shelf | None, named: list[str] | None, relist: bool, left_out: list[Skipped] | None
) -> tuple[Manifest, bool]:
    """The listing, and whether it was made now. With a cache it is made once, by one of all processes.

    Where keys are `named`, theirs are looked up instead, and added to those of other tables.
    """
    if shelf is None:
        return _list(remote, named, left_out), True
    path = shelf.manifest_path if named is None else shelf.manifest_path.with_name("named.parquet")
    with locked(shelf.folder / "lock"):
        known = None if relist else _known(path)
        lacking = named if known is None else known.lacking(named or ())
        if known is not None and not lacking:
            return known, False
        found = _list(remote, lacking, left_out)
        found = found if known is None else known.joined(found)
        if not left_out:  # else the next one to open it must hear of it too
            shelf.try_to(lambda: found.save(path))
        return found, known is None


def _known(path: Path) -> Manifest | None:
    try:
        return Manifest.load(path) if path.exists() else None
    except CorruptError as error:
        _log.warning("%s; listing again", error)
        return None


def _list(remote: Remote, named: list[str] | None, left_out: list[Skipped] | None) -> Manifest:
    folder = local_folder(remote.url)
    if folder is not None:  # a store of files says nothing of links that lead nowhere
        list_folder(folder, left_out)
    return remote.list() if named is None else remote.look_up(named)


def _shelve(
    shelf: Shelf, manifest: Manifest, listed: Manifest, cache_bytes: int | None, fresh: bool
) -> tuple[Cache, int]:
    """Reserve a part of the directory's budget for all that is listed, and find the objects that it keeps."""
    wanted = disk_bytes(listed)
    with shelf.alone():
        before = int(shelf.note().get("reserved_bytes", 0))
        if cache_bytes is None:
            cache_bytes = max(before, int(shutil.disk_usage(shelf.root).free * _FREE_SHARE))
        granted = shelf.reserve(wanted, cache_bytes)
        staged = [choose(manifest, Subset.parse(one)) for one in shelf.note().get("staged", [])]
    at = pc.index_in(manifest.keys, listed.keys).to_numpy()
    keep = kept(listed, granted, at[np.unique(np.concatenate(staged))] if staged else None)
    if fresh or granted < before:
        Cache(shelf, listed, keep).evict()
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


def _check_requests(requests: Any, timeout_s: Any, retries: Any) -> None:
    if requests is not None and (not isinstance(requests, int) or not 1 <= requests <= 1 << 12):
        raise UsageError(f"requests is {requests!r}; expected 1 to {1 << 12} under way at once, or None to adapt")
    if not isinstance(timeout_s, int | float) or not timeout_s > 0:
        raise UsageError(f"timeout_s is {timeout_s!r}; expected seconds, more than 0")
    if not isinstance(retries, int) or retries < 0:
        raise UsageError(f"retries is {retries!r}; expected 0 or more")


def _check_cache(cache: Any, cache_bytes: Any, cache_side: Any) -> None:
    for name, value in (("cache_bytes", cache_bytes), ("cache_side", cache_side)):
        if cache is None and value is not None:
            raise UsageError(f"{name} needs cache='directory'")
    if cache_side is not None and (not isinstance(cache_side, int) or not 1 <= cache_side <= 1 << 14):
        raise UsageError(f"cache_side is {cache_side!r}; expected the shorter side in pixels, from 1 to {1 << 14}")
