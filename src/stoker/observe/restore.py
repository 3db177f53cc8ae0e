"""What a diagnostic run overwrote, removed or renamed is put back, by the journal that `originals` has kept of it."""

import json
import math
import os
import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from stoker.observe import leftovers

JOURNAL = "originals.jsonl"
KEPT = ".stoker-original-"
GRACE_S = 5.0
"""What may lie between the last sign of a run and the last file it wrote."""


def open_journal(directory: Path) -> None:
    """Say whose the run is, so that nobody else puts back what is still in use."""
    owner = {"owner": os.getpid(), "born": _born(os.getpid())}
    (directory / JOURNAL).write_text(json.dumps(owner) + "\n")


def restore(directory: Path, until_s: float = math.inf) -> list[str]:
    """Put everything back, the last change first; returns the paths. What cannot be put back stays in the journal.

    What was written after `until_s` is somebody else's, and stays.
    """
    journal = directory / JOURNAL
    told = entries(journal)
    remains = leftovers.find([entry for entry, _ in told], began_s(directory), str(directory))
    back: set[str] = set()
    stuck = _remove(remains, until_s)
    for entry, at in reversed(told):
        try:
            if not _is_newer(entry, until_s):
                _undo(entry, back)
        except OSError as error:
            stuck.append(entry)
            what = entry.get("path") or entry.get("made") or " and ".join(entry["moved"])
            lies = f"; it lies at {entry['kept']}" if "kept" in entry else ""
            print(f"stoker: {what} could not be put back ({error}){lies}", file=sys.stderr)
        os.truncate(journal, at)  # whoever is killed here must not take it back twice
    for folder in remains.folders:
        with suppress(OSError):  # something else is in it
            os.rmdir(folder)  # noqa: PTH106
    if stuck:
        journal.write_text("".join(json.dumps(entry) + "\n" for entry in reversed(stuck)))
    else:
        journal.unlink(missing_ok=True)
    return sorted(back)


def _remove(remains: leftovers.Leftovers, until_s: float) -> list[dict[str, Any]]:
    """Remove the run's checkpoints; returns entries for those that could not be."""
    # One of two names of a file is as new as the removal of the other: all are looked at before.
    mine = {name: leftovers.changed_s(name) <= until_s for name in remains.files}
    stuck = []
    for name in (name for name, is_mine in mine.items() if is_mine):
        try:
            os.unlink(name)  # noqa: PTH108
        except FileNotFoundError:
            pass
        except OSError as error:
            stuck.append({"made": name})
            print(f"stoker: {name}, a checkpoint of a shortened run, could not be removed ({error})", file=sys.stderr)
    return stuck


def _is_newer(entry: dict[str, Any], until_s: float) -> bool:
    """True if what lies where this would be put back came later; then it is said where the earlier one is."""
    place = entry.get("path") or entry.get("made") or entry.get("moved", [""])[0]
    try:
        newer = os.lstat(place).st_mtime > until_s
    except OSError:
        return False
    if newer and os.path.lexists(entry.get("kept", "")):
        said = f"{place} was written after a run that was killed had moved the one before to {entry['kept']}"
        print(f"stoker: {said}; both are left as they are", file=sys.stderr)
    return newer


def _undo(entry: dict[str, Any], back: set[str]) -> None:
    """Take back one change, and say of which path."""
    if "kept" in entry and os.path.lexists(entry["kept"]):
        Path(entry["path"]).parent.mkdir(parents=True, exist_ok=True)
        _put_back(entry["kept"], entry["path"])
        back.add(entry["path"])
    elif "made" in entry:
        Path(entry["made"]).unlink(missing_ok=True)
    elif "moved" in entry:
        before, after = entry["moved"]
        if _move_back(Path(before), Path(after), entry.get("inode")):
            back.add(before)


def _move_back(before: Path, after: Path, inode: int | None) -> bool:
    """Give a folder its name back; if the script has made a new one, they change names. Can be killed anywhere."""
    aside = after.with_name(f".stoker-{after.name}")
    if not aside.exists():
        if not os.path.lexists(after) or (before.exists() and before.stat().st_ino == inode):
            return False
        if not os.path.lexists(before):
            after.rename(before)
            return True
        after.rename(aside)
    if os.path.lexists(before):
        before.rename(after)
    aside.rename(before)
    return True


def _put_back(kept: str, path: str) -> None:
    try:
        os.replace(kept, path)  # noqa: PTH105
    except OSError:  # a copy on another disk, or for a folder in which nothing can be renamed
        if os.path.islink(kept) or os.path.islink(path):  # noqa: PTH114
            raise
        shutil.copy2(kept, path)
    Path(kept).unlink(missing_ok=True)  # where both were names of one file, replacing leaves both


def recover(home: Path) -> list[str]:
    """Put back what runs left that were killed together with those who had started them, and say so."""
    back = []
    for journal in home.glob(f"**/{JOURNAL}"):
        owner = next((entry for entry, _ in entries(journal) if "owner" in entry), None)
        if owner is None or _born(owner["owner"]) != owner["born"]:
            back += restore(journal.parent, _last_sign_s(journal.parent) + GRACE_S)
    for path in back:
        print(f"stoker: put back {path}, which an earlier run that was killed had overwritten", file=sys.stderr)
    return back


def _last_sign_s(directory: Path) -> float:
    """When a run last wrote something down, which it does all the time."""
    return max((path.stat().st_mtime for path in directory.iterdir()), default=0.0)


def entries(journal: Path) -> list[tuple[dict[str, Any], int]]:
    """What the journal says, and where in it."""
    try:
        lines = journal.read_bytes().splitlines(keepends=True)
    except OSError:
        return []
    found, at = [], 0
    for line in lines:
        try:
            entry = json.loads(line)
        except ValueError:
            entry = None  # torn by a kill; nothing had been moved yet
        if isinstance(entry, dict):
            found.append((entry, at))
        at += len(line)
    return found


def _born(pid: int) -> str | None:
    """What tells a process from a later one with the same number: when the kernel started it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


def began_s(directory: Path) -> float:
    """When the run began, by the clock that files are stamped with."""
    try:
        return float(json.loads((directory / "run.json").read_text())["started_s"])
    except (OSError, ValueError, KeyError):
        return time.time()
