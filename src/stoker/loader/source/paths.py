"""From what a user wrote to a sorted list of files."""

import glob
import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from stoker.errors import NoDataError, UsageError, VanishedError

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

SCHEMES = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "http", "https", "file")
"""Of the stores that are known."""
IMAGES = (".jpg", ".jpeg", ".png", ".webp")
NAMES_MOST = 64
"""A fingerprint lists so many file names; beyond, their digest stands for them."""


def find(paths: Paths, suffixes: Sequence[str]) -> list[str]:
    """The files of a path, a directory, a glob or a list of these; sorted by name, so that the order is stable."""
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    found = [file for one in given for file in _expand(os.fspath(one), suffixes)]
    if not found:
        written = ", ".join(os.fspath(one) for one in given) or "an empty list"
        raise NoDataError(f"no file matches {written}; expected files, a directory or a glob of {', '.join(suffixes)}")
    return sorted(dict.fromkeys(found))


def check_local(path: str) -> None:
    """Refuse an address: nobody would look for a file of that name."""
    if "://" in path:
        raise UsageError(f"{path} is no path of this machine; copy it to a local disk first")


def is_remote(given: Paths) -> bool:
    """True if something of it is the address of a store."""
    every = [given] if isinstance(given, str | os.PathLike) else list(given)
    return any("://" in os.fspath(one) for one in every)


def addresses(given: Paths) -> list[str]:
    """What was given as addresses; paths are those of a store of files."""
    every = [given] if isinstance(given, str | os.PathLike) else list(given)
    if not every:
        raise NoDataError("an empty list was given; expected paths or addresses")
    return [_address(os.fspath(one)) for one in every]


def _address(path: str) -> str:
    scheme, is_one, _ = path.partition("://")
    if not is_one:
        return f"file://{Path(path).absolute()}{'/' * Path(path).is_dir()}"
    if scheme == "file" and Path(path.removeprefix("file://")).is_dir():
        return f"{path.rstrip('/')}/"
    if scheme.lower() not in SCHEMES:
        raise UsageError(f"{path} has the scheme {scheme}://; expected {', '.join(f'{s}://' for s in SCHEMES)}")
    return path


def _expand(path: str, suffixes: Sequence[str]) -> list[str]:
    check_local(path)
    if Path(path).is_dir():
        return [str(p) for p in sorted(walk(path)) if p.name.endswith(tuple(suffixes)) and is_data(p)]
    if glob.has_magic(path) and not Path(path).exists():
        return [p for p in sorted(glob.glob(path, recursive=True)) if is_data(Path(p))]  # noqa: PTH207  absolute or not
    if not Path(path).exists():
        raise NoDataError(f"{path} does not exist; expected a file, a directory or a glob")
    return [path]


def walk(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """What is below a folder and no folder itself, behind links too; a link to a folder that it lies in is left out."""
    above: dict[str, frozenset[tuple[int, int]]] = {os.fspath(folder): frozenset()}
    for at, folders, names in os.walk(folder, followlinks=True):
        here = above.pop(at) | {_inode(at)}
        folders[:] = [one for one in folders if _inode(os.path.join(at, one)) not in here]  # noqa: PTH118  as os.walk
        above.update((os.path.join(at, one), here) for one in folders)  # noqa: PTH118
        yield from (Path(at, name) for name in names)


def is_data(path: Path) -> bool:
    """True of a file, and of a link to one that is not there: leaving that out would lose its rows unsaid."""
    return path.is_file() or not path.exists()


def nbytes(path: str | os.PathLike[str]) -> int:
    """The size of a file; one that is not there is an error that says why."""
    at = Path(path)
    try:
        return at.stat().st_size
    except OSError as error:
        if at.exists():
            raise
        why = f"is a link to {at.readlink()}, which is not there; fetch it" if at.is_symlink() else "is not there"
        raise VanishedError(str(path), f"{why}, or leave it out") from error


def _inode(path: str) -> tuple[int, int]:
    about = Path(path).stat()
    return about.st_dev, about.st_ino


def at_home(path: str | os.PathLike[str]) -> Path:
    """A path with the user's folder in place of `~`."""
    return Path(os.path.expanduser(path))  # noqa: PTH111  Path's own fails where there is no such user


def absolute(files: Iterable[str]) -> list[str]:
    """Files that stay where they are, whatever the working directory becomes."""
    return [file if "://" in file else str(Path(file).absolute()) for file in files]


def fingerprint(kind: str, schema: str, files: Sequence[tuple[str, int, int]]) -> dict[str, Any]:
    """A source in a few words: (path, bytes, rows) of each file and the type of a row. Directories do not count."""
    named = [[Path(path).name, size, rows] for path, size, rows in files]
    found: dict[str, Any] = {
        "kind": kind,
        "schema": schema,
        "files": len(files),
        "bytes": sum(size for _, size, _ in files),
        "rows": sum(rows for _, _, rows in files),
        "digest": hashlib.sha256(repr((schema, named)).encode()).hexdigest()[:32],
    }
    if len(files) <= NAMES_MOST:
        found["names"] = named
    return found
