"""Where a pack is built, beside its destination: a journal of what is done, and one rename at the very end.

DST.packing/plan.json      what is being done
DST.packing/done.jsonl     a line for each finished output, with its checksums
DST.packing/spill/         what the first pass of a shuffle leaves for the second
DST.packing/source/        objects of a store, while they are used
DST.packing/partial/       outputs that are being written
DST.packing/out/           finished outputs; becomes DST
"""

import contextlib
import hashlib
import json
import os
import shutil
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.errors import ChangedError, CorruptError, DestinationExistsError, UsageError
from stoker.pack import plan as plans
from stoker.pack.plan import Plan
from stoker.records.codec import decode, encode

MANIFEST = "manifest.json"
_READ_BYTES = 1 << 22


@dataclass(frozen=True, slots=True)
class Written:
    """A file of the result."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Done:
    """A finished output."""

    number: int
    rows: int
    files: tuple[Written, ...]


class Staging:
    """The folder in which a pack is built; held by one process at a time."""

    def __init__(self, plan: Plan, destination: Path) -> None:
        self.plan = plan
        self.destination = destination
        self.folder = destination.with_name(f"{destination.name}.packing")
        self.out = self.folder / "out"
        self.spill = self.folder / "spill"
        self.source = self.folder / "source"
        self.partial = self.folder / "partial"
        self._journal = self.folder / "done.jsonl"
        self._lock = threading.Lock()
        self._held: Any = None

    def open(self) -> dict[int, Done]:
        """Make the folder, or take up what an earlier run left; returns the outputs that are finished."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except (NotADirectoryError, FileExistsError, PermissionError) as error:
            raise UsageError(f"{self.folder} cannot be made ({error.strerror}); choose another destination") from error
        self._hold()
        told = self.folder / "plan.json"
        if told.exists():
            self._check_same(told)
        else:
            _write_whole(told, plans.to_json(self.plan))
        remove(self.partial)
        remove(self.source)
        for folder in (self.out, self.spill, self.partial):
            folder.mkdir(exist_ok=True)
        names = {output.name for output in self.plan.outputs}
        for left in [*(one for one in self.out.iterdir() if one.name not in names), *self.spill.glob("*.partial")]:
            remove(left)
        return self._finished()

    def _hold(self) -> None:
        self._held = (self.folder / ".lock").open("w")
        with contextlib.suppress(ImportError):
            import fcntl

            try:
                fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                self._held.close()
                raise UsageError(f"another process is packing into {self.destination}; wait for it") from None

    def _check_same(self, told: Path) -> None:
        text = told.read_text()
        if text == plans.to_json(self.plan):
            return
        earlier = plans.from_json(text, str(told))
        known = {file.path: file for file in earlier.files}
        for file in self.plan.files:
            if file.path in known and known[file.path].stamp != file.stamp:
                raise ChangedError(
                    file.path,
                    f"has changed since the pack in {self.folder} was begun; remove that folder to begin anew",
                )
        raise DestinationExistsError(
            f"{self.folder} holds an unfinished pack of other files or with other options; "
            "finish it with the same command, or remove it"
        )

    def _finished(self) -> dict[int, Done]:
        found: dict[int, Done] = {}
        if self._journal.exists():
            for line in self._journal.read_text().splitlines():
                # A line that a kill cut short is of an output that is then made again.
                with contextlib.suppress(ValueError):
                    done = decode(Done, json.loads(line))
                    if all(_size(self.out / file.name) == file.bytes for file in done.files):
                        found[done.number] = done
        return found

    def finish_output(self, number: int, rows: int, place: Path, sha256: str | None) -> Done:
        """Hash an output if that was not done on the way, put it in its place, and note it in the journal."""
        name = self.plan.outputs[number].name
        files = [place] if place.is_file() else sorted(one for one in place.rglob("*") if one.is_file())
        names = [name if one == place else f"{name}/{one.relative_to(place).as_posix()}" for one in files]
        for one in files:
            _sync(one)
        hashed = [(place.stat().st_size, sha256)] if sha256 else [_hash(one) for one in files]
        written = tuple(Written(name, *found) for name, found in zip(names, hashed, strict=True))
        remove(self.out / name)
        place.rename(self.out / name)
        done = Done(number, rows, written)
        with self._lock, self._journal.open("a") as journal:
            journal.write("\n" * _is_torn(self._journal) + json.dumps(encode(done)) + "\n")
            journal.flush()
            os.fsync(journal.fileno())
        return done

    def finish(self, done: dict[int, Done]) -> None:
        """Write the manifest and move everything to its destination."""
        _write_whole(self.out / MANIFEST, _manifest(self.plan, done))
        shutil.rmtree(self.spill, ignore_errors=True)
        _sync(self.out)
        self.out.rename(self.destination)  # an empty folder may be there
        _sync(self.destination.parent)
        self.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def close(self) -> None:
        """Let others in."""
        if self._held is not None:
            self._held.close()


def is_there(plan: Plan, destination: Path) -> bool:
    """True if the destination holds what this plan makes; an error if it holds anything else."""
    if not destination.exists() or (destination.is_dir() and not any(destination.iterdir())):
        return False
    with contextlib.suppress(OSError, ValueError):
        if json.loads((destination / MANIFEST).read_text())["plan"] == plan.digest():
            return True
    raise DestinationExistsError(
        f"{destination} exists and holds something else; choose another destination, or remove it"
    )


def verify(destination: Path, advance: Any) -> int:
    """Compare every file with the manifest; returns how many bytes were compared."""
    manifest = json.loads((destination / MANIFEST).read_text())
    total = 0
    for file in manifest["files"]:
        path = destination / file["name"]
        if not path.exists():
            raise CorruptError(str(path), "is in the manifest, and is not there")
        size, found = _hash(path)
        if (size, found) != (file["bytes"], file["sha256"]):
            raise CorruptError(str(path), "does not match the manifest's checksum")
        total += size
        advance(size)
    return total


def _manifest(plan: Plan, done: dict[int, Done]) -> str:
    ordered = [done[number] for number in range(len(plan.outputs))]
    settings = dict(plan.settings)
    if "tokenizer" in settings:  # a digest will do: the whole is large
        settings["tokenizer"] = hashlib.sha256(str(settings["tokenizer"]).encode()).hexdigest()[:32]
    told = {
        "version": plans.VERSION,
        "plan": plan.digest(),
        "kind": plan.kind,
        "rows": sum(one.rows for one in ordered),
        "bytes": sum(file.bytes for one in ordered for file in one.files),
        "seed": plan.seed,
        "settings": settings,
        "writer": plan.writer,
        "source": [{"name": Path(file.path).name, "bytes": file.bytes, "rows": file.rows} for file in plan.files],
        "files": [encode(file) | {"rows": one.rows} for one in ordered for file in one.files],
    }
    return json.dumps(told, indent=1, sort_keys=True) + "\n"


def remove(path: Path) -> None:
    """A file or a folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _hash(path: Path) -> tuple[int, str]:
    hashed, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while piece := file.read(_READ_BYTES):
            hashed.update(piece)
            size += len(piece)
    return size, hashed.hexdigest()


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.exists() else None


def _is_torn(path: Path) -> bool:
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


def _write_whole(path: Path, text: str) -> None:
    partial = path.with_name(f"{path.name}.partial")
    with partial.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def _sync(path: Path) -> None:
    """Wait until the disk has a file, or a folder's names."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
