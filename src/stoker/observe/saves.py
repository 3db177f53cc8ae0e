"""Checkpoints are timed, and on a diagnostic run written so that the user's own stay as they were.

Where there is none, one is written in its place, and removed when the run has ended (see `leftovers`). One that was
there is never touched, whoever is killed: the new one is written beside, and while the script runs, the path and links
to it lead there: the script can open, load, link, rename, list the size of, or remove what it saved. Nothing is
intercepted before the first such save. Only other programs find what was there before.
"""

import builtins
import functools
import io
import os
from pathlib import Path
from types import ModuleType
from typing import Any

from stoker.observe.originals import Originals
from stoker.observe.pace import Pace
from stoker.observe.patches import Patches
from stoker.observe.recorder import Recorder
from stoker.observe.spans import spanned
from stoker.records.observed import Kind

PATHS = {"path", "file", "f", "src"}
"""What those who open a path call it."""
IN_MEMORY = -1
"""The place of the target among the arguments of a writer that has none."""


class Saves:
    """The paths a script saved to, and where the bytes really are."""

    def __init__(
        self, recorder: Recorder, directory: Path, patches: Patches, pace: Pace, originals: Originals | None
    ) -> None:
        """Without `originals`, what the script saves is saved."""
        self._recorder = recorder
        self._pace = pace
        self._saved_after = (-1, 0)
        self._directory = directory
        self._patches = patches
        self._originals = originals
        self._where: dict[str, str] = {}
        self._scratch: set[str] = set()
        self._intercepting = False
        self._torch: ModuleType | None = None

    def install(self, torch: ModuleType) -> None:
        """Time `torch.save`, and redirect it unless the run is whole."""
        self._torch = torch
        save = torch.save if self._originals is None else self._redirected(torch.save, self._originals)
        self._patches.set(torch, "save", spanned(self._noted(save), self._recorder, Kind.SAVE))
        self._watch_writer(torch.jit, "save", 1)
        self._watch_writer(torch.jit.RecursiveScriptModule, "save", 1)

    def watch_syncs(self) -> None:
        """A file that is synced is a checkpoint's if one was saved since the last backward, or else a log."""
        for name in ("fsync", "fdatasync"):
            self._patches.set(os, name, self._synced(getattr(os, name)))

    def _synced(self, original: Any) -> Any:
        saving, logging = (spanned(original, self._recorder, kind) for kind in (Kind.SAVE, Kind.LOG))

        @functools.wraps(original)
        def sync(*args: Any, **kwargs: Any) -> Any:
            return (saving if self._saved_after == self._step() else logging)(*args, **kwargs)

        return sync

    def _step(self) -> tuple[int, int]:
        """What a backward changes; while hooks doze it is not seen, and a batch stands for it."""
        return self._pace.backwards, self._pace.batches if self._recorder.doze.asleep[0] else 0

    def _noted(self, original: Any) -> Any:
        @functools.wraps(original)
        def save(*args: Any, **kwargs: Any) -> Any:
            self._saved_after = self._step()
            return original(*args, **kwargs)

        return save

    def watch_safetensors(self, module: ModuleType) -> None:
        """Another format of checkpoints."""
        self._watch_writer(module, "serialize_file", 1)
        self._watch_writer(module, "serialize", IN_MEMORY)

    def _watch_writer(self, owner: Any, name: str, place: int) -> None:
        """What writes a file without Python is timed too, and an original at its place is kept before."""
        original, originals = getattr(owner, name), self._originals

        @functools.wraps(original)
        def write(*args: Any, **kwargs: Any) -> Any:
            if originals is not None:
                given = args[place] if 0 <= place < len(args) else kwargs.get("filename", kwargs.get("f"))
                originals.saving(given)
            return original(*args, **kwargs)

        self._patches.set(owner, name, spanned(self._noted(write), self._recorder, Kind.SAVE))

    def after_fork(self) -> None:
        """A forked child removes nothing of its parent's."""
        self._scratch = set()

    def clean(self) -> None:
        """Remove every scratch file."""
        for path in self._scratch:
            Path(path).unlink(missing_ok=True)
        self._scratch.clear()
        self._where.clear()

    # ---- saving beside

    def _redirected(self, original: Any, originals: Originals) -> Any:
        @functools.wraps(original)
        def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
            scratch = self._beside(f, originals)
            if scratch is None:
                originals.saving(f)
            result = original(obj, f if scratch is None else scratch, *args, **kwargs)
            if scratch is not None:
                self._where[_key(f)] = scratch
            return result

        return save

    def _beside(self, target: Any, originals: Originals) -> str | None:
        """A scratch file on the disk of `target`; None if it can be written as it is, or could not be anyway."""
        if not isinstance(target, (str, os.PathLike)):
            return None
        folder = Path(os.path.abspath(os.fspath(target))).parent  # noqa: PTH100  no symlink is resolved
        if not folder.is_dir():
            return None
        known = self._where.get(_key(target))
        if known is not None:
            return known
        self._recorder.note("redirected", path=os.fspath(target))
        if not originals.lies_at(target):
            return None
        same_disk = folder.stat().st_dev == self._directory.stat().st_dev
        home = self._directory if same_disk else folder
        path = str(home / f"stoker-scratch-{os.getpid()}-{len(self._scratch)}")
        self._scratch.add(path)
        self._intercept()
        return path

    # ---- what the script believes

    def _intercept(self) -> None:
        if self._intercepting or self._torch is None:
            return
        self._intercepting = True
        for name in ("stat", "link", "remove", "unlink", "replace", "rename"):
            self._patches.set(os, name, getattr(self, f"_{name}")(getattr(os, name)))
        for owner, name in ((self._torch, "load"), (builtins, "open"), (io, "open")):
            self._patches.set(owner, name, self._read(getattr(owner, name)))

    def _read(self, original: Any) -> Any:
        """Whatever opens a path: it finds what was saved there."""

        @functools.wraps(original)
        def read(*args: Any, **kwargs: Any) -> Any:
            if args:
                args = (self._found(args[0]), *args[1:])
            for name in PATHS & kwargs.keys():
                kwargs[name] = self._found(kwargs[name])
            return original(*args, **kwargs)

        return read

    _stat = _link = _read

    def _found(self, path: Any) -> Any:
        """Where the bytes are that a path, or a link, leads to."""
        return self._where.get(_key(path)) or self._where.get(_key(path, real=True), path)

    def _remove(self, original: Any) -> Any:
        """What was saved goes, and what it stands for too: `originals` keeps that."""

        @functools.wraps(original)
        def remove(path: Any, *args: Any, **kwargs: Any) -> None:
            self._drop(path)
            original(path, *args, **kwargs)

        return remove

    _unlink = _remove

    def _replace(self, original: Any) -> Any:
        """What was saved gets its new name for good; `originals` keeps what lay there, and at the old name."""

        @functools.wraps(original)
        def replace(src: Any, dst: Any, *args: Any, **kwargs: Any) -> None:
            self._drop(dst)
            scratch = self._where.pop(_key(src), None)
            if scratch is None or self._originals is None:
                original(src, dst, *args, **kwargs)
                return
            os.remove(src)  # noqa: PTH107
            original(scratch, dst)

        return replace

    _rename = _replace

    def _drop(self, path: Any) -> None:
        scratch = self._where.pop(_key(path), None)
        if scratch is not None:
            Path(scratch).unlink(missing_ok=True)


def _key(path: Any, *, real: bool = False) -> str:
    """What two spellings of one path have in common; nothing for what is no path."""
    if not isinstance(path, (str, bytes, os.PathLike)):
        return ""
    return (os.path.realpath if real else os.path.abspath)(os.fsdecode(path))
