"""What was measured, written down after every process: a tuner that is killed loses at most the one that runs.

A tuning is a function of what its processes measured: order, judgements and plan follow from them. So going on means
starting again and being told what was measured, until the journal ends.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.records.codec import decode, encode
from stoker.records.observed import Value
from stoker.trial.measure import Sample


@dataclass(frozen=True, slots=True)
class Entry:
    """One process, or the reason why one was not started."""

    place: str
    knobs: Mapping[str, Value]
    seconds: float
    sample: Sample | None
    refusal: str | None = None


class Journal:
    """The entries of one tuning, in order; those that are there already are told again."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "journal.jsonl"
        self._told, is_torn = _read(self._path)
        self._at = 0
        if is_torn:  # what is added must not go on in the middle of a line
            self._rewrite()

    @property
    def is_replaying(self) -> bool:
        """True while what is asked for was measured before."""
        return self._at < len(self._told)

    def refuses(self, knobs: Mapping[str, Value]) -> bool:
        """True if what stands here is that these knobs were refused."""
        return self.is_replaying and self._told[self._at].knobs == dict(knobs)

    def next(self, knobs: Mapping[str, Value]) -> Entry | None:
        """The entry that stands here, if it is about these knobs; else what follows is forgotten."""
        if not self.is_replaying:
            return None
        entry = self._told[self._at]
        if entry.knobs != dict(knobs):
            del self._told[self._at :]
            self._rewrite()
            return None
        self._at += 1
        return entry

    def add(self, entry: Entry) -> None:
        """Write it down now."""
        self._told.append(entry)
        self._at = len(self._told)
        with self._path.open("a") as file:
            file.write(_line(entry))
            file.flush()
            os.fsync(file.fileno())

    def _rewrite(self) -> None:
        part = self._path.with_suffix(".part")
        part.write_text("".join(_line(entry) for entry in self._told))
        part.replace(self._path)


def _line(entry: Entry) -> str:
    return json.dumps(encode(entry)) + "\n"


def _read(path: Path) -> tuple[list[Entry], bool]:
    """The whole lines, and whether there is one that is not: torn by a kill, and what it told is measured again."""
    found: list[Entry] = []
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    for line in lines:
        try:
            data: Any = json.loads(line)
            found.append(decode(Entry, data))
        except ValueError:
            break
    return found, len(found) < len(lines) or not all(line.endswith("\n") for line in lines)
