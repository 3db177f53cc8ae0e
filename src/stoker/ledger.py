"""The embedded store of runs: one SQLite file in `.stoker/`, safe against kill -9, and a directory for each run."""

import json
import sqlite3
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.errors import UsageError

HOME = Path(".stoker")
LAST = "last"
_SCHEMA = """
create table if not exists runs (
    run text primary key,
    directory text not null,
    command text not null,
    started_s real not null,
    state text not null,
    verdict text,
    summary text
);
create table if not exists trials (
    run text not null,
    number integer not null,
    decision text not null,
    record text not null,
    primary key (run, number)
);
create table if not exists benches (
    started_s real not null,
    data text not null,
    record text not null
);
"""
PATIENCE_S = 30.0
"""How long a ledger that somebody else holds is waited for."""
ROOM_BYTES = 1 << 18
"""More than the index and the small files take that a run begins with; with less there is nothing to be recorded."""


class _NoIndexError(UsageError):
    """The index cannot be written: a full or read-only disk. One that somebody holds is not meant."""


@dataclass(frozen=True, slots=True)
class Row:
    """One run in the index. `state` is running, done, failed, short, interrupted, or broken if it cannot be read."""

    run: str
    directory: Path
    command: tuple[str, ...]
    started_s: float
    state: str
    verdict: str | None


@dataclass(frozen=True, slots=True)
class BenchRow:
    """One measured data set; `record` is JSON, as `stoker bench --json` writes it."""

    started_s: float
    data: tuple[str, ...]
    record: str


class Ledger:
    """The runs below one directory, by default `.stoker` where the command was typed."""

    def __init__(self, home: Path = HOME) -> None:
        self.home = home
        self._is_missed = False

    def open_run(self, command: Sequence[str], directory: Path | None = None) -> Row:
        """A new run with a directory of its own. It goes on without the index where that cannot be written."""
        started_s = time.time()
        run, place = self._place(started_s, directory)
        row = Row(run, place, tuple(command), started_s, "running", None)
        values = (run, str(place.resolve()), json.dumps(list(command)), started_s, "running")
        self._note("insert into runs (run, directory, command, started_s, state) values (?, ?, ?, ?, ?)", values)
        return row

    def close_run(self, run: str, state: str, verdict: str | None, summary: str | None) -> None:
        """Say how a run ended."""
        sql = "update runs set state = ?, verdict = ?, summary = ? where run = ?"
        self._note(sql, (state, verdict, summary, run))

    def add_trial(self, run: str, number: int, decision: str, record: str) -> None:
        """A trial of a run, as JSON; the same number again replaces it."""
        sql = "insert or replace into trials (run, number, decision, record) values (?, ?, ?, ?)"
        self._note(sql, (run, number, decision, record))

    def _note(self, sql: str, values: Sequence[Any]) -> None:
        """Write about a run, which needs only its directory: an index that cannot be written is said, once."""
        if self._is_missed:
            return
        try:
            with self._database() as database:
                database.execute(sql, values)
        except _NoIndexError as error:
            self._is_missed = True
            print(f"stoker: {error}; going on, with no index of runs", file=sys.stderr)

    def trials(self, run: str, patience_s: float = PATIENCE_S) -> list[str]:
        """The trials of a run, as JSON, in the order they were tried."""
        sql = "select record from trials where run = ? order by number"
        return [record for (record,) in self._read(sql, patience_s, run)]

    def runs(self, patience_s: float = PATIENCE_S) -> list[Row]:
        """All runs, newest first: those in the index, and those that only left a directory."""
        indexed = self._indexed(patience_s)
        known = {row.directory.resolve() for row in indexed}
        loose = [row for row in self.loose() if row.directory.resolve() not in known]
        return sorted([*indexed, *loose], key=lambda row: row.started_s, reverse=True)

    def loose(self) -> list[Row]:
        """The runs that have a directory, as far as that tells; the index is not asked."""
        return [_loose(path) for path in self.home.glob("runs/*/run.json")]

    def _indexed(self, patience_s: float) -> list[Row]:
        sql = "select run, directory, command, started_s, state, verdict from runs"
        return [_row(*found) for found in self._read(sql, patience_s)]

    def add_bench(self, data: Sequence[str], record: str) -> None:
        """A measured data set."""
        with self._database() as database:
            sql = "insert into benches (started_s, data, record) values (?, ?, ?)"
            database.execute(sql, (time.time(), json.dumps(list(data)), record))

    def benches(self, patience_s: float = PATIENCE_S) -> list[BenchRow]:
        """Measured data sets, newest first."""
        sql = "select started_s, data, record from benches order by started_s desc"
        return [BenchRow(started_s, _words(data), record) for started_s, data, record in self._read(sql, patience_s)]

    def _read(self, sql: str, patience_s: float, *values: str) -> list[tuple[Any, ...]]:
        """Rows, without writing anything; a store that an older version made may lack a table."""
        path = self.home / "ledger.db"
        if not path.exists():
            return []
        with self._readable():
            try:
                return self._select("mode=ro", sql, patience_s, values)
            except sqlite3.OperationalError as error:
                if "no such table" in str(error):
                    return []
                if _is_held(error):
                    raise
            # Readers and writers share a file, for which a full or read-only disk has no room; nobody writes there.
            with self._writable():
                return self._select("mode=ro&immutable=1", sql, patience_s, values)

    def _select(self, how: str, sql: str, patience_s: float, values: Sequence[str]) -> list[tuple[Any, ...]]:
        uri = f"{(self.home / 'ledger.db').resolve().as_uri()}?{how}"
        with closing(sqlite3.connect(uri, uri=True, timeout=patience_s)) as database:
            return database.execute(sql, values).fetchall()

    def find(self, name: str) -> Path:
        """The directory of a run: its name, the start of its name, `last`, or the directory itself."""
        if any((Path(name) / file).is_file() for file in ("run.json", "tuning.json")):
            return Path(name)
        rows = self.runs()
        if name == LAST and rows:
            return rows[0].directory
        found = [row for row in rows if row.run == name] or [row for row in rows if row.run.startswith(name)]
        if len(found) == 1:
            return found[0].directory
        if found:
            raise UsageError(f"{name} could be {', '.join(row.run for row in found)}; write more of it")
        known = f"known runs: {', '.join(row.run for row in rows[:5])}" if rows else f"{self.home} holds no runs yet"
        raise UsageError(f"no run is called {name}; {known}")

    def _place(self, started_s: float, directory: Path | None) -> tuple[str, Path]:
        """A name, and a directory in which records can be written; that is tried before anything is run."""
        try:
            if directory is None:
                self._make_home()
            run, place = self._fresh(started_s, directory)
            _try_to_write(place, removes=directory is None)
        except OSError as error:
            where, again = (directory, "somewhere else") if directory else (self.home, "where")
            raise UsageError(
                f"records cannot be kept in {where}: {error.strerror}; say {again} with --out DIR"
            ) from error
        return run, place

    def _fresh(self, started_s: float, directory: Path | None) -> tuple[str, Path]:
        """A name and a directory that nobody has, also if two runs start in the same second."""
        stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(started_s))
        for number in range(1, 1000):
            run = stamp if number == 1 else f"{stamp}-{number}"
            place = directory or self.home / "runs" / run
            try:
                place.mkdir(parents=True, exist_ok=directory is not None and not any(directory.glob("*")))
            except FileExistsError:
                if directory is not None:
                    raise UsageError(f"{directory} is not empty; expected a new or empty directory for --out") from None
                continue
            if directory is None or not self._is_known(run):
                return run, place
        raise UsageError(f"{self.home} is full of runs of this second; try again")

    def _is_known(self, run: str) -> bool:
        with suppress(_NoIndexError):
            return any(row.run == run for row in self.runs())
        return False

    @contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        with self._writable(), self._readable():
            self._make_home()
            with closing(sqlite3.connect(self.home / "ledger.db", timeout=PATIENCE_S)) as database:
                database.execute("pragma journal_mode = wal")
                database.executescript(_SCHEMA)
                with database:
                    yield database

    def _make_home(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        ignore = self.home / ".gitignore"
        if not ignore.exists() or not ignore.stat().st_size:  # a full disk leaves an empty one
            ignore.write_text("*\n")

    @contextmanager
    def _writable(self) -> Iterator[None]:
        """What the system says of a disk that takes nothing, in words that help."""
        try:
            yield
        except OSError as error:
            raise _NoIndexError(f"{self.home} cannot be written ({error.strerror})") from error
        except sqlite3.OperationalError as error:
            if _is_held(error):
                raise
            raise _NoIndexError(f"{self.home / 'ledger.db'} cannot be used ({error})") from error

    @contextmanager
    def _readable(self) -> Iterator[None]:
        """What SQLite says of a file that is none of its own, in words that help."""
        try:
            yield
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError as error:
            path = self.home / "ledger.db"
            raise UsageError(f"{path} is damaged ({error}); move it away, and a new one is made of the runs") from error


def _is_held(error: sqlite3.OperationalError) -> bool:
    """True if somebody else holds the ledger, who will let go of it."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _try_to_write(place: Path, *, removes: bool) -> None:
    """Raise what the system says if there is no room for a run; `removes` the directory then, which is a new one."""
    tried = place / ".tried"
    try:
        tried.write_bytes(bytes(ROOM_BYTES))
    except OSError:
        tried.unlink(missing_ok=True)
        if removes:
            place.rmdir()
        raise
    tried.unlink()


def _loose(path: Path) -> Row:
    """A run that was recorded from inside a script, without the command line."""
    state = "done" if (path.parent / "end.json").exists() else "running"
    try:
        about = json.loads(path.read_text())
        return Row(path.parent.name, path.parent, tuple(about["command"]), float(about["started_s"]), state, None)
    except (OSError, ValueError, KeyError, TypeError):
        return Row(path.parent.name, path.parent, (), _changed_s(path), "broken", None)


def _row(run: str, directory: str, command: str, started_s: float, state: str, verdict: str | None) -> Row:
    return Row(run, Path(directory), _words(command), started_s, state, verdict)


def _words(text: str) -> tuple[str, ...]:
    """A list of words, as it was kept; what is no such list is shown as it is."""
    try:
        found = json.loads(text)
    except ValueError:
        return (text,)
    return tuple(map(str, found)) if isinstance(found, list) else (text,)


def _changed_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
