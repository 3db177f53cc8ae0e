"""Checkpoints are timed, and on a diagnostic run written beside, so that the user's own stay as they were.

While the script runs, a path that it believes to have saved leads to the scratch file: it can load, rename, list the
size of, or remove what it saved. Nothing is intercepted before the first save.
"""

import functools
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


class Saves:
    """The paths a script saved to, and where the bytes really are."""

    def __init__(self, recorder: Recorder, directory: Path, patches: Patches, pace: Pace, *, redirect: bool) -> None:
        self._recorder = recorder
        self._pace = pace
        self._saved_after = -1
        self._directory = directory
        self._patches = patches
        self._redirect = redirect
        self._where: dict[str, str] = {}
        self._scratch: set[str] = set()
        self._intercepting = False
        self._torch: ModuleType | None = None

    def install(self, torch: ModuleType) -> None:
        """Time `torch.save`, and redirect it unless the run is whole."""
        self._torch = torch
        save = self._redirected(torch.save) if self._redirect else torch.save
        self._patches.set(torch, "save", spanned(self._noted(save), self._recorder, Kind.SAVE))

    def watch_syncs(self) -> None:
        """A file that is synced is a checkpoint's if one was saved since the last backward, or else a log."""
        for name in ("fsync", "fdatasync"):
            self._patches.set(os, name, self._synced(getattr(os, name)))

    def _synced(self, original: Any) -> Any:
        saving, logging = (spanned(original, self._recorder, kind) for kind in (Kind.SAVE, Kind.LOG))

        @functools.wraps(original)
        def sync(*args: Any, **kwargs: Any) -> Any:
            return (saving if self._saved_after == self._pace.backwards else logging)(*args, **kwargs)

        return sync

    def _noted(self, original: Any) -> Any:
        @functools.wraps(original)
        def save(*args: Any, **kwargs: Any) -> Any:
            self._saved_after = self._pace.backwards
            return original(*args, **kwargs)

        return save

    def watch_safetensors(self, module: ModuleType, originals: Originals | None) -> None:
        """What writes a file without Python is timed too, and an original at its place is kept before."""
        original = module.serialize_file

        @functools.wraps(original)
        def serialize_file(tensors: Any, filename: Any, *args: Any, **kwargs: Any) -> Any:
            if originals is not None:
                originals.losing(filename)
            return original(tensors, filename, *args, **kwargs)

        self._patches.set(module, "serialize_file", spanned(self._noted(serialize_file), self._recorder, Kind.SAVE))

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

    def _redirected(self, original: Any) -> Any:
        @functools.wraps(original)
        def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
            scratch = self._beside(f)
            result = original(obj, f if scratch is None else scratch, *args, **kwargs)
            if scratch is not None:
                self._where[_key(f)] = scratch
            return result

        return save

    def _beside(self, target: Any) -> str | None:
        """A scratch file on the disk of `target`; None for what is no path or could not be written anyway."""
        if not isinstance(target, (str, os.PathLike)):
            return None
        folder = Path(os.path.abspath(os.fspath(target))).parent  # noqa: PTH100  no symlink is resolved
        if not folder.is_dir():
            return None
        known = self._where.get(_key(target))
        if known is not None:
            return known
        same_disk = folder.stat().st_dev == self._directory.stat().st_dev
        home = self._directory if same_disk else folder
        path = str(home / f"stoker-scratch-{os.getpid()}-{len(self._scratch)}")
        self._scratch.add(path)
        self._recorder.note("redirected", path=os.fspath(target))
        self._intercept()
        return path

    # ---- what the script believes

    def _intercept(self) -> None:
        if self._intercepting or self._torch is None:
            return
        self._intercepting = True
        for name in ("stat", "remove", "unlink", "replace", "rename"):
            self._patches.set(os, name, getattr(self, f"_{name}")(getattr(os, name)))
        self._patches.set(self._torch, "load", self._load(self._torch.load))

    def _load(self, original: Any) -> Any:
        @functools.wraps(original)
        def load(f: Any, *args: Any, **kwargs: Any) -> Any:
            return original(self._where.get(_key(f), f), *args, **kwargs)

        return load

    def _stat(self, original: Any) -> Any:
        @functools.wraps(original)
        def stat(path: Any, *args: Any, **kwargs: Any) -> Any:
            return original(self._where.get(_key(path), path), *args, **kwargs)

        return stat

    def _remove(self, original: Any) -> Any:
        @functools.wraps(original)
        def remove(path: Any, *args: Any, **kwargs: Any) -> None:
            scratch = self._where.pop(_key(path), None)
            original(path if scratch is None else scratch, *args, **kwargs)

        return remove

    _unlink = _remove

    def _replace(self, original: Any) -> Any:
        @functools.wraps(original)
        def replace(src: Any, dst: Any, *args: Any, **kwargs: Any) -> None:
            scratch = self._where.pop(_key(src), None)
            if scratch is None:
                original(src, dst, *args, **kwargs)
                return
            replaced = self._where.get(_key(dst))
            if replaced is not None:
                Path(replaced).unlink(missing_ok=True)
            self._where[_key(dst)] = scratch

        return replace

    _rename = _replace


def _key(path: Any) -> str:
    """What two spellings of one path have in common; nothing for what is no path."""
    if not isinstance(path, (str, os.PathLike)):
        return ""
    return os.path.abspath(os.fsdecode(path))  # noqa: PTH100
