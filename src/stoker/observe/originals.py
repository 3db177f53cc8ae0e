"""Files that were there before a diagnostic run are there after it, unchanged, whatever the shortened script overwrote.

Python tells its audit hooks of every file that is about to be opened, removed or renamed. Before an original is
truncated it is moved aside, before it is removed or replaced it gets a second name, and a line in a journal says so.
When the run has ended, whoever started it puts everything back, and removes the checkpoints that were not there before;
after kill -9 of all of them, the next command does.

    {"path": …, "kept": …}     an original, and where it lies meanwhile
    {"moved": […, …]}          a folder that was there, from one name to another
    {"made": …}                a checkpoint, or another name of an original, where there was nothing
"""

import json
import math
import os
import sys
import tempfile
import time
from _thread import get_ident
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from stat import S_IMODE, S_ISLNK, S_ISREG
from typing import Any

JOURNAL = "originals.jsonl"
KEPT = ".stoker-original-"
GRACE_S = 5.0
"""What may lie between the last sign of a run and the last file it wrote."""
NEW_FILES = 50
"""How many names of new files are kept for the report."""
_NOT_FILES = ("/proc/", "/dev/", "/sys/")
_NOT_THEIRS = (f"{os.sep}__pycache__{os.sep}", f"{os.sep}.cache{os.sep}", f"{os.sep}.stoker{os.sep}")


class Originals:
    """The child's side: keeps what is about to be lost."""

    def __init__(self, directory: Path, started_s: float) -> None:
        self._directory = str(directory) + os.sep
        self._started_ns = int(started_s * 1e9)
        self._journal = directory / JOURNAL
        self._busy: set[int] = set()
        self._count = 0
        self._made: dict[str, None] = {}
        self._folders: set[str] = set()
        """Folders that the script made."""
        self._touched: set[str] = set()
        """Originals whose times say otherwise, because the script has touched or added to them."""
        self._moved: set[str] = set()
        """Where originals lie that the script renamed; their bytes have a second name already."""
        self._saved: set[str] = set()
        """Checkpoints of the script where there were none."""
        self._off = False
        scratch = tempfile.gettempdir() + os.sep
        elsewhere = () if str(Path.cwd()).startswith(scratch) else (scratch,)
        self._not_theirs = (*_NOT_FILES, self._directory, *elsewhere)
        self._acts: dict[str, Callable[..., None]] = {
            "open": self._opened,
            "os.remove": self._removed,
            "os.rename": self._renamed,
            "os.truncate": self._truncated,
            "os.mkdir": self._new_folder,
            **dict.fromkeys(("os.utime", "os.chmod", "os.chown", "os.link"), self._changed),
        }

    def start(self) -> None:
        """Listen. An audit hook cannot be taken back, only silenced."""
        sys.addaudithook(self._hear)

    def stop(self) -> None:
        """The script's own code has ended."""
        self._off = True

    def new_files(self) -> list[str]:
        """What the script itself made and left, as far as it was seen."""
        return [path for path in self._made if path not in self._saved and os.path.exists(path)]  # noqa: PTH110

    def losing(self, path: Any) -> None:
        """A file is about to be written by something that Python does not hear of."""
        if isinstance(path, (str, os.PathLike)):
            self._hear("open", (path, "w", os.O_WRONLY | os.O_CREAT | os.O_TRUNC))

    def leaves_room(self, path: str) -> bool:
        """True if a checkpoint can be written to this path, because nothing of the user's lies there."""
        name = os.path.realpath(path)
        if name not in self._saved and not os.path.lexists(name):
            self._saved.add(name)
            self._write({"made": name})
        return not self._is_original(name) and name not in self._moved

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        act = self._acts.get(event)
        if act is None or self._off:
            return
        thread = get_ident()
        if thread in self._busy:
            return
        self._busy.add(thread)
        try:
            act(*args)
        except Exception:  # noqa: BLE001, S110  the script goes on as it would
            pass
        finally:
            self._busy.discard(thread)

    def _opened(self, path: Any, _: Any, flags: Any) -> None:
        if not isinstance(flags, int) or not flags & (os.O_WRONLY | os.O_RDWR | os.O_TRUNC):
            return
        if not flags & os.O_TRUNC:
            self._changed(path)
        elif (name := _name(path)) is not None:
            self._emptied(os.path.realpath(name), creates=bool(flags & os.O_CREAT))

    def _emptied(self, name: str, *, creates: bool) -> None:
        """A file is about to lose its bytes: the name is made free for others, which hold only what is written now."""
        if not os.path.lexists(name):
            self._new(name)
            return
        mode = os.stat(name).st_mode  # noqa: PTH116
        if name in self._moved:
            os.unlink(name)  # noqa: PTH108
        elif self._is_original(name):
            with self._kept(name) as kept:
                os.rename(name, kept)  # noqa: PTH104
        else:
            return
        self._forget(name)
        if not creates:
            os.close(os.open(name, os.O_WRONLY | os.O_CREAT, S_IMODE(mode)))

    def _truncated(self, path: Any, length: Any) -> None:
        name = _name(path)
        if name is None:
            return
        name = os.path.realpath(name)
        head = b""
        if length and (self._is_original(name) or name in self._moved):
            with open(name, "rb") as file:  # noqa: PTH123  we are inside the hook
                head = file.read(length)
        self._emptied(name, creates=False)
        if head:
            with open(name, "r+b") as file:  # noqa: PTH123
                file.write(head)

    def _changed(self, path: Any, *_: Any) -> None:
        """A file stays what it is, with another time on it, or more in it."""
        name = _name(path)
        if name is not None and self._is_original(name := os.path.realpath(name)):
            self._touched.add(name)

    def _removed(self, path: Any, folder: Any = -1) -> None:
        name = _name(path, folder)
        if name is None:
            return
        self._made.pop(name, None)
        self._second_name(name)
        self._forget(name)

    def _renamed(self, source: Any, target: Any, source_folder: Any = -1, target_folder: Any = -1) -> None:
        before, after = _name(source, source_folder), _name(target, target_folder)
        if before is None or after is None:
            return
        if os.path.isdir(before) and not os.path.islink(before):  # noqa: PTH112, PTH114
            if before not in self._folders:
                self._write({"moved": [before, after]})
            return
        moves = self._is_original(before) or before in self._moved
        for name in (before, after):
            if name not in self._moved:
                self._second_name(name)
            self._forget(name)
        if moves:
            self._moved.add(after)
            self._write({"made": after})
        if before in self._made:
            del self._made[before]
            self._new(after)
        if before in self._saved:
            self._saved.add(after)
            self._write({"made": after})

    def _forget(self, name: str) -> None:
        """Nothing of the user's has this name any more."""
        self._touched.discard(name)
        self._moved.discard(name)

    def _new_folder(self, path: Any, _: Any = None, folder: Any = -1) -> None:
        name = _name(path, folder)
        if name is not None and not os.path.lexists(name):
            self._folders.add(name)

    def _second_name(self, name: str) -> None:
        if self._is_original(name):
            with self._kept(name) as kept:
                os.link(name, kept, follow_symlinks=False)

    def _is_original(self, name: str) -> bool:
        """True if this file was there when the run began."""
        if name.startswith((*_NOT_FILES, self._directory)) or _NOT_THEIRS[0] in name:
            return False
        try:
            found = os.lstat(name)
        except OSError:
            return False
        if not (S_ISREG(found.st_mode) or S_ISLNK(found.st_mode)):
            return False
        # One that another run has put back meanwhile has its old time of change only in its bytes.
        older = min(found.st_ctime_ns, found.st_mtime_ns) < self._started_ns
        return (older or name in self._touched) and not self._is_anothers(name)

    def _is_anothers(self, name: str) -> bool:
        """True if another run in this place, which goes on, has written this file: it will put the original back."""
        own = Path(self._directory)
        journals = [path for path in own.parent.glob(f"*/{JOURNAL}") if path.parent != own]
        return any(json.dumps(name) in path.read_text() for path in journals)

    @contextmanager
    def _kept(self, name: str) -> Iterator[str]:
        """Where to keep a file: with the run's records, or beside it if that is another disk."""
        folder = os.path.dirname(name)  # noqa: PTH120
        same_disk = os.stat(folder).st_dev == os.stat(self._directory).st_dev  # noqa: PTH116
        self._count += 1
        file = f"{KEPT}{os.getpid()}-{self._count}"
        kept = os.path.join(self._directory if same_disk else folder, file)  # noqa: PTH118
        self._write({"path": name, "kept": kept})
        yield kept

    def _write(self, entry: dict[str, Any]) -> None:
        with self._journal.open("a") as journal:
            journal.write(json.dumps(entry) + "\n")

    def _new(self, name: str) -> None:
        theirs = not any(part in name for part in _NOT_THEIRS) and not name.startswith(self._not_theirs)
        if theirs and len(self._made) < NEW_FILES:
            self._made[name] = None


def _name(path: Any, folder: Any = -1) -> str | None:
    """The absolute path an event speaks of; None for an open descriptor."""
    if isinstance(path, int):
        return None
    name = os.fsdecode(path)
    if isinstance(folder, int) and folder >= 0 and not os.path.isabs(name):  # noqa: PTH117
        name = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), name)  # noqa: PTH115, PTH118
    return os.path.abspath(name)  # noqa: PTH100


# ---- the parent's side -----------------------------------------------------------------------------------


def open_journal(directory: Path) -> None:
    """Say whose the run is, so that nobody else puts back what is still in use."""
    owner = {"owner": os.getpid(), "born": _born(os.getpid())}
    (directory / JOURNAL).write_text(json.dumps(owner) + "\n")


def restore(directory: Path, until_s: float = math.inf) -> list[str]:
    """Put everything back, the last change first; returns the paths. What cannot be put back stays in the journal.

    What was written after `until_s` is somebody else's, and stays.
    """
    journal = directory / JOURNAL
    back: set[str] = set()
    stuck = []
    for entry, at in reversed(_entries(journal)):
        try:
            if not _is_newer(entry, until_s):
                _undo(entry, back)
        except OSError as error:
            stuck.append(entry)
            told = entry.get("path") or entry.get("made") or " and ".join(entry["moved"])
            lies = f"; it lies at {entry['kept']}" if "kept" in entry else ""
            print(f"stoker: {told} could not be put back ({error}){lies}", file=sys.stderr)
        os.truncate(journal, at)  # whoever is killed here must not take it back twice
    if stuck:
        journal.write_text("".join(json.dumps(entry) + "\n" for entry in reversed(stuck)))
    else:
        journal.unlink(missing_ok=True)
    return sorted(back)


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
        os.replace(entry["kept"], entry["path"])  # noqa: PTH105
        back.add(entry["path"])
    elif "made" in entry:
        Path(entry["made"]).unlink(missing_ok=True)
    elif "moved" in entry and os.path.lexists(entry["moved"][1]):
        before, after = map(Path, entry["moved"])
        if os.path.lexists(before):  # the script has made a new one: they change names
            aside = after.with_name(f".stoker-{after.name}")
            after.rename(aside)
            before.rename(after)
            after = aside
        after.rename(before)
        back.add(str(before))


def recover(home: Path) -> list[str]:
    """Put back what runs left that were killed together with those who had started them, and say so."""
    back = []
    for journal in home.glob(f"**/{JOURNAL}"):
        owner = next((entry for entry, _ in _entries(journal) if "owner" in entry), None)
        if owner is None or _born(owner["owner"]) != owner["born"]:
            back += restore(journal.parent, _last_sign_s(journal.parent) + GRACE_S)
    for path in back:
        print(f"stoker: put back {path}, which an earlier run that was killed had overwritten", file=sys.stderr)
    return back


def _last_sign_s(directory: Path) -> float:
    """When a run last wrote something down, which it does all the time."""
    return max((path.stat().st_mtime for path in directory.iterdir()), default=0.0)


def _entries(journal: Path) -> list[tuple[dict[str, Any], int]]:
    """What the journal says, and where in it."""
    try:
        lines = journal.read_bytes().splitlines(keepends=True)
    except OSError:
        return []
    entries, at = [], 0
    for line in lines:
        try:
            entry = json.loads(line)
        except ValueError:
            entry = None  # torn by a kill; nothing had been moved yet
        if isinstance(entry, dict):
            entries.append((entry, at))
        at += len(line)
    return entries


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
