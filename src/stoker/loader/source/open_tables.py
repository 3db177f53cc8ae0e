"""From an address to a source of records or of Parquet: listing, choosing, cache."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any, Literal

import numpy as np

from stoker.errors import NoDataError, UsageError
from stoker.loader.source import listing, paths
from stoker.loader.source.interface import Skipped, Source
from stoker.loader.source.tier import Store

SUFFIXES = (".npy", ".parquet")


def open_tables(
    given: paths.Paths,
    *,
    columns: Sequence[str] | None = None,
    cache: str | os.PathLike[str] | None = None,
    cache_bytes: int | str | None = None,
    requests: int | None = None,
    hedge: bool = True,
    timeout_s: float = 30.0,
    retries: int = 8,
    relist: bool = False,
    store_options: Mapping[str, Any] | None = None,
    on_error: Literal["raise", "skip"] = "raise",
) -> Source:
    """Objects of records (.npy) or of Parquet: one address, a folder of them, a glob, or a list of these."""
    addresses = paths.addresses(given)
    root, names = listing.root_of(addresses)
    store = listing.opened(
        root, "tables", names, cache=cache, cache_bytes=cache_bytes, requests=requests,
        hedge=hedge, timeout_s=timeout_s, retries=retries, relist=relist, store_options=store_options,
    )  # fmt: skip
    keys = store.listed.keys.to_pylist()
    rows = listing.chosen(keys, names, SUFFIXES)
    if not rows and any(key.lower().endswith(paths.IMAGES) for key in keys):
        raise UsageError("size is needed to open images: size=(224, 224), as height and width")
    if not rows:
        raise NoDataError(f"no object matches {', '.join(addresses)}; expected {' or '.join(SUFFIXES)}")
    store = replace(store, listed=store.listed.take(np.array(rows, np.int64)))
    lost = listing.dangling(root, names, SUFFIXES)
    if lost and on_error == "raise":
        raise lost[0]
    source = _source(store, columns, on_error)
    source.skipped += tuple(Skipped(one.path, 0, 0, one.reason) for one in lost)
    return source


def _source(store: Store, columns: Sequence[str] | None, on_error: Literal["raise", "skip"]) -> Source:
    kinds = {PurePosixPath(store.listed.key(row)).suffix for row in range(len(store.listed))}
    if len(kinds) > 1:
        raise UsageError(f"the objects are of several kinds ({', '.join(sorted(kinds))}); open one kind at a time")
    if kinds == {".npy"}:
        from stoker.loader.source.npy_remote import RemoteNpySource

        return RemoteNpySource(store, columns=columns, on_error=on_error)
    from stoker.loader.source.parquet_remote import RemoteParquetSource

    return RemoteParquetSource(store, columns=columns, on_error=on_error)
