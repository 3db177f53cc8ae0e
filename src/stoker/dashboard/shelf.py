"""The runs as pages see them: looked up by name in the ledger, never a path from a request."""

import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol

from stoker.errors import UsageError
from stoker.ledger import BenchRow, Ledger, Row
from stoker.records.attributed import Course
from stoker.records.compared import Comparison
from stoker.records.diagnosis import Diagnosis
from stoker.records.live import Live

PATIENCE_S = 0.5
"""How long a page waits for a ledger that somebody else holds."""
SILENT_S = 20.0
"""A run that goes on writes more often than this."""
TUNING = "tuning.json"
UNREADABLE = (sqlite3.Error, UsageError)
"""What a ledger raises that somebody holds, or that is damaged."""

Kind = Literal["run", "tuning", "decision"]


class Following(Protocol):
    """Something that reads on in a run each time it is asked."""

    @property
    def behind(self) -> bool:
        """More is there than the last look has read."""

    def look(self) -> Live:
        """The run as it is now."""


@dataclass(frozen=True, slots=True)
class Sources:
    """What the dashboard is given: the ledger, and the doctor's stages as functions of a run's directory."""

    ledger: Ledger
    diagnose: Callable[[Path], tuple[Diagnosis, Course | None]]
    follow: Callable[[Path], Following]
    compare: Callable[[Path, Path], Comparison]


@dataclass(frozen=True, slots=True)
class Entry:
    """One run. `trouble` says why its records cannot be shown; `directory` is then None."""

    run: str
    kind: Kind
    directory: Path | None
    command: tuple[str, ...]
    started_s: float
    state: str
    verdict: str | None
    trouble: str | None = None

    @property
    def is_live(self) -> bool:
        """It goes on."""
        return self.state == "running" and self.trouble is None


class Shelf:
    """All that is in one `.stoker/`."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._home = ledger.home.resolve()

    @property
    def home(self) -> Path:
        """Where it is."""
        return self._home

    def entries(self) -> tuple[list[Entry], str | None]:
        """Newest first, and what must be known about the list itself."""
        try:
            rows, notice = self._ledger.runs(PATIENCE_S), None
        except UNREADABLE as error:
            rows = sorted(self._ledger.loose(), key=lambda row: row.started_s, reverse=True)
            notice = f"The ledger cannot be read now ({error}); these are the runs that have a directory."
        return [self._entry(row) for row in rows], notice

    def find(self, run: str) -> Entry | None:
        """The run of exactly this name."""
        return next((entry for entry in self.entries()[0] if entry.run == run), None)

    def trials(self, run: str) -> list[str]:
        """What a tuning has tried so far, as JSON."""
        try:
            return self._ledger.trials(run, PATIENCE_S)
        except UNREADABLE:
            return []

    def benches(self) -> tuple[list[BenchRow], str | None]:
        """Measured data sets, newest first."""
        try:
            return self._ledger.benches(PATIENCE_S), None
        except UNREADABLE as error:
            return [], f"The ledger cannot be read now ({error})."

    def _entry(self, row: Row) -> Entry:
        entry = Entry(row.run, "run", row.directory, row.command, row.started_s, row.state, row.verdict)
        directory = row.directory.resolve()
        if row.state == "broken":
            return replace(entry, directory=None, trouble="its record is broken: run.json cannot be read")
        if not directory.is_relative_to(self._home):
            return replace(entry, directory=None, trouble=f"its records lie elsewhere: stoker report {directory}")
        if not directory.is_dir():
            return replace(entry, directory=None, trouble="its directory was deleted")
        if (directory / TUNING).is_file():
            return replace(entry, kind="decision", directory=directory)
        if not (directory / "run.json").is_file():  # a tuning keeps its runs one level deeper
            return replace(entry, kind="tuning", directory=directory)
        state = "lost" if row.state == "running" and _is_silent(directory) else row.state
        return replace(entry, directory=directory, state=state)


def _is_silent(directory: Path) -> bool:
    """Nothing was written for long, though nobody said that it is over."""
    if (directory / "end.json").exists():
        return False
    try:
        newest = max((path.stat().st_mtime for path in directory.iterdir()), default=0.0)
    except OSError:
        return True
    return time.time() - newest > SILENT_S
