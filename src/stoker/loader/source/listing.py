"""What lies below an address: listed once, chosen by name, and how a store may be asked."""

import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stoker.errors import CorruptError, DataError, UsageError
from stoker.loader.cache import Shelf, locked
from stoker.loader.source import paths
from stoker.loader.source.manifest import Manifest
from stoker.loader.source.remote import Remote, local_folder
from stoker.loader.source.tier import Store
from stoker.sizes import parse_bytes

_log = logging.getLogger("stoker.remote")
_MAGIC = re.compile(r"[*?\[]")
_CLASS = re.compile(r"\[!?[^\]]+\]")


def listed(
    remote: Remote, shelf: Shelf | None, named: list[str] | None, *, relist: bool, keep: bool = True
) -> tuple[Manifest, bool]:
    """The listing, and whether it was made now. With a cache it is made once, by one of all processes.

    Where keys are `named`, theirs are looked up instead, and added to those of others. One that is not to be kept is
    made again by the next one to open it.
    """
    if shelf is None:
        return _list(remote, named), True
    path = shelf.manifest_path if named is None else shelf.manifest_path.with_name("named.parquet")
    with locked(shelf.folder / "lock"):
        known = None if relist else _known(path)
        lacking = named if known is None else known.lacking(named or ())
        if known is not None and not lacking:
            return known, False
        found = _list(remote, lacking)
        found = found if known is None else known.joined(found)
        if keep:
            shelf.try_to(lambda: found.save(path))
        return found, known is None


def opened(
    root: str,
    what: str,
    names: list[str],
    *,
    keys: bool = True,
    cache: str | os.PathLike[str] | None = None,
    cache_bytes: int | str | None = None,
    requests: int | None = None,
    hedge: bool = True,
    timeout_s: float = 30.0,
    retries: int = 8,
    relist: bool = False,
    store_options: Mapping[str, Any] | None = None,
) -> Store:
    """All that lies below an address, and how it is asked for and kept; of single keys, where it may be, only these."""
    check_requests(requests, timeout_s, retries)
    check_cache(cache, cache_bytes)
    budget = budget_bytes(cache_bytes)
    remote = Remote(root, timeout_s=timeout_s, retries=retries, options=store_options)
    home = None if cache is None else str(paths.at_home(cache).absolute())
    shelf = None if home is None else Shelf(home, root, what)
    named = names if keys and are_keys(names) else None
    manifest, fresh = listed(remote, shelf, named, relist=relist)
    if named is not None:  # the cache may know others
        known = set(named)
        manifest = manifest.take(np.flatnonzero([key in known for key in manifest.keys.to_pylist()]))
    return Store(remote, manifest, requests, hedge, home, budget, fresh, " ".join(sorted(names)))


def _known(path: Path) -> Manifest | None:
    try:
        return Manifest.load(path) if path.exists() else None
    except CorruptError as error:
        _log.warning("%s; listing again", error)
        return None


def _list(remote: Remote, named: list[str] | None) -> Manifest:
    return remote.list() if named is None else remote.look_up(named)


def root_of(addresses: Iterable[str]) -> tuple[str, list[str]]:
    """The address below which all of these lie, and what is left of each: a key, a pattern, or nothing for a folder."""
    split = [_split(one) for one in addresses]
    if len({store for store, _, _ in split}) > 1:
        raise UsageError(
            f"{split[0][0]} and {next(s for s, _, _ in split if s != split[0][0])} are two stores; open one"
        )
    shared = split[0][1]
    for _, folders, _ in split:
        shared = shared[: next((i for i, (a, b) in enumerate(zip(shared, folders)) if a != b), len(folders))]  # noqa: B905  the shorter one counts
    root = "/".join([split[0][0], *shared]) + "/"
    return root, list(dict.fromkeys("/".join([*folders[len(shared) :], name]) for _, folders, name in split))


def _split(address: str) -> tuple[str, list[str], str]:
    """Store, folders without a pattern in them, and the rest."""
    scheme, _, rest = address.partition("://")
    host, *parts = rest.split("/")
    plain = next((i for i, part in enumerate(parts[:-1]) if _MAGIC.search(part)), len(parts) - 1)
    return f"{scheme}://{host}", parts[: max(0, plain)], "/".join(parts[max(0, plain) :])


def is_pattern(name: str) -> bool:
    """True if a name stands for others."""
    return _MAGIC.search(name) is not None


def are_keys(names: Sequence[str]) -> bool:
    """True if names are those of single objects, so that nothing has to be listed."""
    return all(name and not name.endswith("/") and not is_pattern(name) for name in names)


def pattern(text: str) -> "re.Pattern[str]":
    """A glob over keys: `*` and `?` stay within a folder, `**` does not."""
    found = ""
    for part in re.split(r"(\*\*/|\*\*|\*|\?|\[!?[^\]]+\])", text):
        kinds = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
        found += kinds.get(part) or (_class(part) if _CLASS.fullmatch(part) else re.escape(part))
    try:
        return re.compile(found)
    except re.error as error:
        raise UsageError(f"{text} is no pattern: {error}") from error


def _class(part: str) -> str:
    """One of some characters, none of which is a slash."""
    return f"(?!/){part.replace('[!', '[^', 1)}"


def chosen(keys: Sequence[str], names: Sequence[str], suffixes: Sequence[str]) -> list[int]:
    """The objects of some kinds that were named: by their keys, by a pattern, or by their folder."""
    is_meant = meant(names)
    return [row for row, key in enumerate(keys) if key.endswith(tuple(suffixes)) and is_meant(key)]


def meant(names: Sequence[str]) -> Callable[[str], bool]:
    """Whether a key is one of these, below one of these folders, or matches one of these patterns."""
    known, patterns = set(names), [pattern(name) for name in names if is_pattern(name)]
    folders = tuple(name for name in names if name.endswith("/"))
    return lambda key: (
        "" in known or key in known or key.startswith(folders) or any(one.fullmatch(key) for one in patterns)
    )


def dangling(root: str, names: Sequence[str], suffixes: Sequence[str]) -> list[DataError]:
    """Links to nothing among the named files of a local folder: a store of files does not list them."""
    folder = local_folder(root)
    if folder is None or not folder.is_dir():
        return []
    is_meant, found = meant(names), []
    for path in sorted(paths.walk(folder)):
        key = path.relative_to(folder).as_posix()
        if path.is_symlink() and not path.exists() and key.endswith(tuple(suffixes)) and is_meant(key):
            try:
                paths.nbytes(path)
            except DataError as error:
                found.append(error)
    return found


def budget_bytes(cache_bytes: int | str | None) -> int | None:
    """What a cache may take, as the user said it."""
    return None if cache_bytes is None else parse_bytes(cache_bytes, "cache_bytes", least_bytes=1 << 20)


def check_requests(requests: Any, timeout_s: Any, retries: Any) -> None:
    """How a store is asked must make sense."""
    if requests is not None and (not isinstance(requests, int) or not 1 <= requests <= 1 << 12):
        raise UsageError(f"requests is {requests!r}; expected 1 to {1 << 12} under way at once, or None to adapt")
    if not isinstance(timeout_s, int | float) or not timeout_s > 0:
        raise UsageError(f"timeout_s is {timeout_s!r}; expected seconds, more than 0")
    if not isinstance(retries, int) or retries < 0:
        raise UsageError(f"retries is {retries!r}; expected 0 or more")


def check_cache(cache: Any, cache_bytes: Any) -> None:
    """A budget is one of a directory."""
    if cache is None and cache_bytes is not None:
        raise UsageError("cache_bytes needs cache='directory'")
