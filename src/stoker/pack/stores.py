"""Sources in a store, while a plan is carried out: objects as files that come and go, volumes read where they are."""

import shutil
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from stoker.errors import ChangedError, NoDataError, UsageError, VanishedError
from stoker.loader.source.manifest import Manifest
from stoker.loader.source.paths import addresses
from stoker.loader.source.pull import AHEAD_BYTES
from stoker.loader.source.remote import Remote
from stoker.loader.source.volume import Volume
from stoker.pack import bring
from stoker.pack.plan import OTHER, Plan, SourceFile, stored_stamp
from stoker.pack.sources import Sources
from stoker.pack.stored_volumes import StoredVolumes

_NAMED_MOST = 512
"""More objects than these are listed, with all that lies beside them, and not looked up one by one."""
_GONE = "is not there any more; it was when the plan was made"


class Objects(Sources):
    """Objects of a store. What arrives is what was listed, which is what was planned, or an error."""

    def __init__(self, plan: Plan, memory_bytes: int) -> None:
        self.memory_bytes = min(AHEAD_BYTES, memory_bytes // 8)
        self._remote, self._listed = _looked_up(plan.files)
        rows = {self._listed.address(row): row for row in range(len(self._listed))}
        for file in plan.files:
            if file.path not in rows:
                raise VanishedError(file.path, _GONE)
        self._rows = [rows[file.path] for file in plan.files]
        self._at = {file.path: row for file, row in zip(plan.files, self._rows, strict=True)}
        self._bring: bring.Bring | None = None
        self._folder: Path | None = None
        for file in plan.files:
            row = self._at[file.path]
            if stored_stamp(self._listed.object_bytes(row), self._listed.tag(row)) != file.stamp:
                raise ChangedError(file.path, OTHER)

    def expect(self, needs: Sequence[Sequence[int]], folder: Path) -> None:
        """Begin to bring them."""
        self._folder = folder
        rows = [[self._rows[number] for number in some] for some in needs]
        self._bring = bring.Bring(self._remote, self._listed, rows, folder, self.memory_bytes)

    def disk_bytes(self, needs: Sequence[Sequence[int]], workers: int) -> int:
        """What is brought ahead, and what each piece of work is at."""
        sizes = [self._listed.object_bytes(self._rows[number]) for number in {one for some in needs for one in some}]
        return min(sum(sizes), bring.DISK_BYTES + (workers + 1) * max(sizes, default=0))

    def local(self, file: SourceFile) -> AbstractContextManager[str]:
        """As soon as it is here."""
        assert self._bring is not None
        return self._bring.local(self._at[file.path])

    def stop(self) -> None:
        """End all requests."""
        super().stop()
        if self._bring is not None:
            self._bring.close()

    def close(self) -> None:
        """Stop, and remove what was brought."""
        self.stop()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


class Volumes(Sources):
    """Volumes of a store, read where they are: the chunks of a box are brought, and compared, when it is read."""

    memory_bytes = AHEAD_BYTES

    def __init__(self, plan: Plan) -> None:
        names = _checked(plan.files)
        try:
            self._found = StoredVolumes(names)
        except NoDataError as error:
            raise VanishedError(names[0], _GONE) from error
        for file in plan.files:
            if file.path not in self._found.names:
                raise VanishedError(file.path, _GONE)
            if self._found.file(file.path, None).stamp != file.stamp:
                raise ChangedError(file.path, OTHER)

    def volume(self, file: SourceFile, *, fill_missing: bool) -> Volume:
        """Read where it is."""
        return self._found.volume(file.path, fill_missing=fill_missing)

    def stop(self) -> None:
        """End all requests."""
        super().stop()
        self._found.stop()


def _checked(files: Sequence[SourceFile]) -> list[str]:
    """The addresses of a plan; it is what a file says, so it may name what no store has."""
    names = addresses(file.path for file in files)
    for name in names:
        if {"", ".", ".."}.intersection(name.partition("://")[2].split("/")):
            raise UsageError(f"the plan names {name}, which is no address of an object; make a new plan")
    return names


def _looked_up(files: Sequence[SourceFile]) -> tuple[Remote, Manifest]:
    """What the store says of objects now."""
    names = _checked(files)
    root = _shared([name.rpartition("/")[0] + "/" for name in names])
    scheme, _, place = root.partition("://")
    host, _, folder = place.partition("/")
    remote, keys = Remote(f"{scheme}://{host}/{quote(folder)}"), [name.removeprefix(root) for name in names]
    if len(keys) > _NAMED_MOST and not root.startswith("http"):
        return remote, replace(remote.list(), url=root)
    try:
        return remote, replace(remote.look_up(keys), url=root)
    except VanishedError as error:
        raise VanishedError(root + error.path.removeprefix(remote.url), _GONE) from error


def _shared(folders: Sequence[str]) -> str:
    """The longest folder that all of these are in, or are."""
    first, last = min(folders), max(folders)
    same = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    root = first[:same].rpartition("/")[0] + "/"
    if root.partition("://")[2] in ("", "/"):
        raise UsageError(f"{first} and {last} are of two stores; pack one of them")
    return root
