"""Files that were there before a diagnostic run are there after it, unchanged, whatever the shortened script overwrote.

Python tells its audit hooks of every file that is about to be opened, removed or renamed. Before an original is
truncated it is moved aside, before it is removed or replaced it gets a second name, and a line in a journal says so.
When the run has ended, whoever started it puts everything back (see `restore`), and removes the checkpoints that were
not there before (see `leftovers`); after kill -9 of all of them, the next command does.

    {"path": …, "kept": …}     an original, and where it lies meanwhile
    {"moved": […, …], …}       a folder that was there, from one name to another; by its inode it is known again
    {"made": …}                another name of an original, where there was nothing
    {"new": …}                 a file or a link where there was nothing
    {"folder": …}              a folder where there was nothing
    {"renamed": […, …]}        a file, or a folder of the run's, from one name to another
    {"saved": …, "at": …}      where a checkpoint was written by one who writes checkpoints; null for into memory
"""

import json
import os
import shutil
import sys
import tempfile
import time
from _thread import get_ident
from collections.abc import Callable
from contextlib import suppress
from errno import ENOSPC
from functools import partial
from pathlib import Path
from stat import S_IMODE, S_ISLNK, S_ISREG
from typing import Any

from stoker.observe import leftovers
from stoker.observe.restore import JOURNAL, KEPT, entries

_NOT_FILES = ("/proc/", "/dev/", "/sys/")
_OWN = (f"{os.sep}__pycache__{os.sep}", f"{os.sep}.stoker{os.sep}")
_NOT_THEIRS = (*_OWN, leftovers.CACHE)


class UnkeptError(OSError):
    """An original would be lost: what the script is about to do fails instead."""


_link = os.link
"""The system's own: `saves` puts another in its place, which knows where the script's checkpoints are."""


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
        self._removed_folders: set[str] = set()
        """Folders that were there, and are not new when the script makes them again."""
        self._touched: set[str] = set()
        """Originals whose times say otherwise, because the script has touched or added to them."""
        self._moved: set[str] = set()
        """Where originals lie that the script renamed; their bytes have a second name already."""
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
            "os.rmdir": self._removed_folder,
            "os.link": self._linked,
            "os.symlink": self._led,
            **dict.fromkeys(("os.utime", "os.chmod", "os.chown"), self._changed),
        }

    def start(self) -> None:
        """Listen. An audit hook cannot be taken back, only silenced."""
        sys.addaudithook(self._hear)

    def stop(self) -> None:
        """The script's own code has ended."""
        self._off = True

    def new_files(self) -> list[str]:
        """What the script itself made and will leave, as far as it was seen."""
        told = [entry for entry, _ in entries(self._journal)]
        going = {entry["path"] for entry in told if "path" in entry}
        going.update(leftovers.find(told, self._started_ns / 1e9, str(self._journal.parent)).files)
        return [path for path in self._made if path not in going and os.path.lexists(path) and self._is_theirs(path)]

    def saving(self, target: Any) -> None:
        """A checkpoint is about to be written, to a path, into an open file, or into memory.

        Python does not hear of the first: what lies there is kept, as if it were opened.
        """
        name = _name_of(target)
        if name is not None and isinstance(target, (str, os.PathLike)):
            self._hear("open", (name, "w", os.O_WRONLY | os.O_CREAT | os.O_TRUNC))
        with suppress(OSError):
            self._write({"saved": name, "at": time.time()})

    def lies_at(self, path: Any) -> bool:
        """True if a file of the user's lies at this path, or behind it."""
        name = os.path.realpath(os.fsdecode(path))
        return self._is_original(name) or name in self._moved

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
        except UnkeptError:
            raise
        except Exception:  # noqa: BLE001, S110  the script goes on as it would
            pass
        finally:
            self._busy.discard(thread)

    def _opened(self, path: Any, _: Any, flags: Any) -> None:
        if not isinstance(flags, int) or not flags & (os.O_WRONLY | os.O_RDWR | os.O_TRUNC):
            return
        name = _name(path)
        if name is None:
            return
        name = os.path.realpath(name)
        if flags & os.O_CREAT and not os.path.lexists(name):
            self._new(name)
        elif flags & os.O_TRUNC:
            self._emptied(name, creates=bool(flags & os.O_CREAT))
        else:
            self._changed(name)

    def _emptied(self, name: str, *, creates: bool) -> None:
        """A file is about to lose its bytes: the name is made free for others, which hold only what is written now."""
        mode = os.stat(name).st_mode  # noqa: PTH116
        if name in self._moved:
            os.unlink(name)  # noqa: PTH108
        elif self._is_original(name):
            self._keep(name, os.rename)
        else:
            return
        self._forget(name)
        self._new(name)
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
            self._renamed_folder(before, after)
            return
        if before.startswith(self._directory):  # what was saved beside an original gets a name of its own
            self._second_name(after)
            self._forget(after)
            self._made.pop(after, None)
            self._new(after)
            self._write({"saved": after, "at": time.time()})
            return
        moves = self._is_original(before) or before in self._moved
        for name in (before, after):
            if name not in self._moved:
                self._second_name(name)
            self._forget(name)
        self._write({"renamed": [before, after]})
        if moves:
            self._moved.add(after)
            self._write({"made": after})
        self._made.pop(after, None)
        if before in self._made:
            del self._made[before]
            self._made[after] = None

    def _linked(self, source: Any, target: Any, source_folder: Any = -1, target_folder: Any = -1) -> None:
        self._changed(_name(source, source_folder))
        self._led(source, target, target_folder)

    def _led(self, _: Any, target: Any, folder: Any = -1) -> None:
        """A second name for a file, or one that leads to it."""
        name = _name(target, folder)
        if name is not None and not os.path.lexists(name):
            self._new(name)

    def _renamed_folder(self, before: str, after: str) -> None:
        # Another process of the run may have made it.
        is_new = before in self._folders or json.dumps({"folder": before}) in self._journal.read_text()
        if is_new:
            self._folders.add(after)
            self._write({"renamed": [before, after]})
        else:
            self._write({"moved": [before, after], "inode": os.stat(before).st_ino})  # noqa: PTH116
        inside = before + os.sep
        self._made = {after + name[len(before) :] if name.startswith(inside) else name: None for name in self._made}

    def _forget(self, name: str) -> None:
        """Nothing of the user's has this name any more."""
        self._touched.discard(name)
        self._moved.discard(name)

    def _new_folder(self, path: Any, _: Any = None, folder: Any = -1) -> None:
        name = _name(path, folder)
        if name is not None and name not in self._removed_folders and not os.path.lexists(name):
            self._folders.add(name)
            self._write({"folder": name})

    def _removed_folder(self, path: Any, folder: Any = -1) -> None:
        name = _name(path, folder)
        if name is not None and name not in self._folders:
            self._removed_folders.add(name)

    def _second_name(self, name: str) -> None:
        if self._is_original(name):
            self._keep(name, partial(_link, follow_symlinks=False))

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

    def _keep(self, name: str, move: Callable[[str, str], None]) -> None:
        """Keep a file with the run's records, or beside it if that is another disk; a copy where neither can be."""
        try:
            folder = os.path.dirname(name)  # noqa: PTH120
            same_disk = os.stat(folder).st_dev == os.stat(self._directory).st_dev  # noqa: PTH116
            try:
                move(name, self._place(name, self._directory if same_disk else folder))
            except OSError:
                kept = self._place(name, self._directory)
                shutil.copy2(name, f"{kept}.part", follow_symlinks=False)
                os.replace(f"{kept}.part", kept)  # noqa: PTH105  whoever is killed here leaves all of it or nothing
        except OSError as error:
            if os.path.lexists(name):  # no other process was quicker
                said = f"stoker: {name} is not written, because it could not be kept aside: {error}"
                raise UnkeptError(said) from error

    def _place(self, name: str, folder: str) -> str:
        self._count += 1
        kept = os.path.join(folder, f"{KEPT}{os.getpid()}-{self._count}")  # noqa: PTH118
        self._write({"path": name, "kept": kept})
        return kept

    def _write(self, entry: dict[str, Any]) -> None:
        journal = os.open(self._journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            line = f"\n{json.dumps(entry)}\n".encode()  # one that a full disk tore may stand before
            if os.write(journal, line) < len(line):
                raise OSError(ENOSPC, os.strerror(ENOSPC))
        finally:
            os.close(journal)

    def _new(self, name: str) -> None:
        if name not in self._made and not self._is_nobodys(name):
            self._made[name] = None
            self._write({"new": name})

    def _is_nobodys(self, name: str) -> bool:
        return name.startswith((*_NOT_FILES, self._directory)) or any(part in name for part in _OWN)

    def _is_theirs(self, name: str) -> bool:
        """True for a file that is worth telling of."""
        return not any(part in name for part in _NOT_THEIRS) and not name.startswith(self._not_theirs)


def _name_of(target: Any) -> str | None:
    """The absolute path of a file that is given by its own, or open; None for anything else that can be written to."""
    try:
        if isinstance(target, tempfile.SpooledTemporaryFile):
            return None  # to ask for its number would make it a file
        if not isinstance(target, (str, os.PathLike)):
            target = os.readlink(f"/proc/self/fd/{target.fileno()}")  # noqa: PTH115
        return os.path.realpath(os.fsdecode(target))
    except Exception:  # noqa: BLE001  whatever a script's own object says to that
        return None


def _name(path: Any, folder: Any = -1) -> str | None:
    """The absolute path an event speaks of; None for an open descriptor."""
    if path is None or isinstance(path, int):
        return None
    name = os.fsdecode(path)
    if isinstance(folder, int) and folder >= 0 and not os.path.isabs(name):  # noqa: PTH117
        name = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), name)  # noqa: PTH115, PTH118
    above, last = os.path.split(os.path.abspath(name))  # noqa: PTH100
    return os.path.join(os.path.realpath(above), last)  # noqa: PTH118  one name, whatever links led there
