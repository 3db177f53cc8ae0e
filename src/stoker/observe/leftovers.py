"""Checkpoints that a diagnostic run made: found by what they hold, however they were written, and removed.

A later run of the script must not take one for a real one's. What is here was made by the run for certain: its journal
says that the name was free, and the file was last changed since the run began.
"""

import os
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from stat import S_ISREG
from typing import Any

LEGACY = b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""The number that torch.save put first before it wrote archives, as any protocol of pickle writes it."""
LEGACY_WITHIN = 32
HEADER = 8
"""The bytes in which a safetensors file says how long its header is."""
COARSE_S = 0.02
"""Files are stamped by a clock that may be as late as this."""
CACHE = f"{os.sep}.cache{os.sep}"
"""What is downloaded there is no checkpoint of the script's."""


@dataclass(slots=True)
class Leftovers:
    """What is to be removed."""

    files: list[str] = field(default_factory=list)
    """In this order: the checkpoints last, so that a removal that is killed is gone on with by the next."""
    folders: list[str] = field(default_factory=list)
    """Where they lay, and did not exist before; inner ones first. For when they are empty."""


@dataclass(slots=True)
class _Told:
    """What a journal says of new files, under the names they have now."""

    new: set[str] = field(default_factory=set)
    folders: set[str] = field(default_factory=set)
    saved: set[str] = field(default_factory=set)
    kept: set[str] = field(default_factory=set)
    """Where originals lie meanwhile."""
    replaced: set[str] = field(default_factory=set)
    """Where they will be put back, over whatever lies there: nobody has to remove that."""
    saving_s: float = float("inf")
    """When the script first saved anything: what lay there before was not saved by it."""


def find(entries: Iterable[dict[str, Any]], began_s: float, apart: str) -> Leftovers:
    """The checkpoints among a run's new files, and all that is new in new folders that hold one.

    Nothing below the folder `apart`, where the run's records are, is looked at.
    """
    told = _read(entries)
    if told.saving_s == float("inf"):
        return Leftovers()
    new = {name for name in told.new if changed_s(name) >= began_s}
    checkpoints = {name for name in new if name in told.saved or _looks_saved(name, told.saving_s)}
    files = {name for name in checkpoints if _is_file(name)}
    folders = {os.path.dirname(name) for name in files} & told.folders  # noqa: PTH120
    gone = checkpoints | folders
    others = {name for name in new if os.path.islink(name) and os.path.realpath(name) in gone}  # noqa: PTH114
    others.update(name for folder in folders for name in _inside(folder, told, began_s))
    found = [*sorted(others - checkpoints), *sorted(checkpoints)]
    return Leftovers(
        files=[name for name in found if name not in told.replaced and _is_removable(name, apart)],
        folders=sorted(_around(folders, told.folders), key=len, reverse=True),
    )


def _read(entries: Iterable[dict[str, Any]]) -> _Told:
    told = _Told()
    for entry in entries:
        if "new" in entry:
            told.new.add(entry["new"])
        elif "folder" in entry:
            told.folders.add(entry["folder"])
        elif "saved" in entry:
            told.saving_s = min(told.saving_s, entry["at"] - COARSE_S)
            told.saved.add(entry["saved"] or "")
        elif "kept" in entry:
            told.kept.add(entry["kept"])
            told.replaced.add(entry["path"])
        elif "renamed" in entry:
            before, after = entry["renamed"]
            _rename(told, before, after, is_folder=before in told.folders)
        elif "moved" in entry:
            _rename(told, *entry["moved"], is_folder=True)
    return told


def _rename(told: _Told, before: str, after: str, *, is_folder: bool) -> None:
    """What had one name has another; what had the other is no more."""
    for names in (told.new, told.folders, told.saved, *([told.replaced] if is_folder else [])):
        names.discard(after)
        moved = {name for name in names if name.startswith(before + os.sep)} if is_folder else set()
        moved |= {before} & names
        names.difference_update(moved)
        names.update(after + name[len(before) :] for name in moved)


def _looks_saved(name: str, saving_s: float) -> bool:
    return _written_s(name) >= saving_s and CACHE not in name and holds_checkpoint(name)


def _inside(folder: str, told: _Told, began_s: float) -> Iterator[str]:
    """The new files of a folder; also those that were written by something that Python does not hear of."""
    for place, folders, files in os.walk(folder):
        for name in (os.path.join(place, one) for one in (*files, *folders)):  # noqa: PTH118
            since_s = changed_s(name) if name in told.new else min(changed_s(name), _written_s(name))
            if since_s >= began_s and name not in told.kept:  # an older one may have been moved there
                yield name


def _around(folders: set[str], new: set[str]) -> set[str]:
    """The new folders that may be empty once these have been emptied: they, those in them, those around them."""
    return {
        one
        for one in new
        for folder in folders
        if (one + os.sep).startswith(folder + os.sep) or folder.startswith(one + os.sep)
    }


def changed_s(name: str) -> float:
    """When a file or a link was last written, linked or renamed, which nobody can pretend; 0 where there is none."""
    try:
        return os.lstat(name).st_ctime
    except OSError:
        return 0.0


def _written_s(name: str) -> float:
    try:
        return os.lstat(name).st_mtime
    except OSError:
        return 0.0


def _is_file(name: str) -> bool:
    return os.path.isfile(name) and not os.path.islink(name)  # noqa: PTH113, PTH114


def _is_removable(name: str, apart: str) -> bool:
    """True for a file or a link, to which no link leads, outside of the folder `apart`."""
    folder = os.path.dirname(name)  # noqa: PTH120
    is_one = _is_file(name) or os.path.islink(name)  # noqa: PTH114
    return is_one and os.path.realpath(folder) == folder and not name.startswith(apart + os.sep)


def holds_checkpoint(name: str) -> bool:
    """True for what torch.save or safetensors wrote; of a link, what it leads to."""
    try:
        if not S_ISREG(os.stat(name).st_mode):  # noqa: PTH116
            return False
        with open(name, "rb") as file:  # noqa: PTH123
            head = file.read(LEGACY_WITHIN)
            if head.startswith(b"PK"):
                names = zipfile.ZipFile(file).namelist()
                return any(one.endswith("/data.pkl") for one in names)
            return LEGACY in head or _begins_as_safetensors(head, os.fstat(file.fileno()).st_size)
    except Exception:  # noqa: BLE001  whatever lies there, all else must be put back
        return False


def _begins_as_safetensors(head: bytes, size: int) -> bool:
    length = int.from_bytes(head[:HEADER], "little")
    return head[HEADER : HEADER + 1] == b"{" and 2 <= length <= size - HEADER  # noqa: PLR2004  at least: {}
