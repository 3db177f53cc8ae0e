"""A folder seen as a bucket: keys are untrusted names, objects are files, listing is in key order."""

import hashlib
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_HALF_WRITTEN = ".put-"  # an upload's file until its last byte is there; never listed, never served
_UNSPEAKABLE = re.compile("[\x00-\x1f\ud800-\udfff]")  # XML cannot carry control characters, nor UTF-8 half a pair


class KeyRefusedError(ValueError):
    """A key that would leave the folder, or that no file can have."""


@dataclass(frozen=True)
class Page:
    """One answer to a listing: objects, the prefixes rolled up by the delimiter, and where the next page starts."""

    keys: list[str]
    prefixes: list[str]
    next_after: str | None  # None: this was the last page


class Bucket:
    """Objects below one folder.

    >>> Bucket(Path("photos")).page(prefix="cats/", delimiter="/", after="", limit=1000).keys
    ['cats/one.jpg', 'cats/two.jpg']
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._etags: dict[Path, tuple[tuple[int, int], str]] = {}

    def path(self, key: str) -> Path:
        """The file of a key; refuses whatever could reach outside the folder. Symbolic links are not followed."""
        parts = key.split("/")
        if any(part in {"", ".", ".."} or part.startswith(_HALF_WRITTEN) for part in parts):
            raise KeyRefusedError("a key has no empty, '.' or '..' part")
        if _UNSPEAKABLE.search(key):
            raise KeyRefusedError("a key has no control characters")
        path = self.root.joinpath(*parts)
        if path.resolve() != path:
            raise KeyRefusedError("a key does not pass through a symbolic link")
        return path

    def etag(self, path: Path) -> str:
        """MD5 of a file's bytes, remembered until its size or time of change differs."""
        stat = path.stat()
        seen = (stat.st_mtime_ns, stat.st_size)
        known = self._etags.get(path)
        if known is None or known[0] != seen:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
            known = self._etags[path] = (seen, digest)
        return known[1]

    def put(self, key: str, body: bytes) -> str:
        """Store an object whole or not at all; returns its ETag."""
        path = self.path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=_HALF_WRITTEN, delete=False) as file:
            try:
                file.write(body)
                file.flush()
                Path(file.name).replace(path)
            except BaseException:
                Path(file.name).unlink(missing_ok=True)
                raise
        return self.etag(path)

    def page(self, prefix: str, delimiter: str, after: str, limit: int) -> Page:
        """Up to `limit` keys and rolled-up prefixes that follow `after`."""
        keys: list[str] = []
        prefixes: list[str] = []
        if limit == 0:
            return Page(keys, prefixes, None)
        last = after
        for key in self._keys(self.root, "", prefix, after):
            rolled = _rolled_up(key, prefix, delimiter)
            if rolled is not None and rolled <= last:
                continue  # below a prefix that is already listed
            if len(keys) + len(prefixes) == limit:
                return Page(keys, prefixes, last)
            last = key if rolled is None else rolled
            (keys if rolled is None else prefixes).append(last)
        return Page(keys, prefixes, None)

    def _keys(self, folder: Path, lead: str, prefix: str, after: str) -> Iterator[str]:
        """Keys in byte order, without entering folders that cannot hold a match."""
        with os.scandir(folder) as scan:
            names = [entry.name + "/" * entry.is_dir() for entry in scan if _is_listed(entry)]
        for name in sorted(names):
            key = lead + name
            if name.endswith("/"):
                may_match = key.startswith(prefix) or prefix.startswith(key)
                all_before = key < after and not after.startswith(key)
                if may_match and not all_before:
                    yield from self._keys(folder / name, key, prefix, after)
            elif key.startswith(prefix) and key > after:
                yield key


def _is_listed(entry: os.DirEntry[str]) -> bool:
    plain = entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False)
    return plain and not entry.name.startswith(_HALF_WRITTEN) and not _UNSPEAKABLE.search(entry.name)


def _rolled_up(key: str, prefix: str, delimiter: str) -> str | None:
    """The common prefix that stands for a key in a listing with a delimiter; None where it stands for itself."""
    if not delimiter:
        return None
    at = key.find(delimiter, len(prefix))
    return None if at < 0 else key[: at + len(delimiter)]
