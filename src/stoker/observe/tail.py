"""What a run's processes append, read as it comes: only what is new since the look before."""

import json
import os
import re
import time
from array import array
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stoker.observe.dozed import Filler, Seen
from stoker.observe.readback import loader_facts
from stoker.records.codec import decode
from stoker.records.live import News, Odd, Piece, Pulse
from stoker.records.observed import SMALLEST_TIME, Meter

NOTES = re.compile(r"process-(\d+)-\d+\.notes")
WORD = 8
"""Bytes of a number in a file of events."""
MOST_BYTES = 8 << 20
"""Read from one file at a look, so that catching up with a long run shows how far it is."""


class Tail:
    """Follows one run's directory. It is only read, and may vanish at any time."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read: dict[Path, int] = {}
        self._done: set[str] = set()
        self._fillers: defaultdict[str, Filler] = defaultdict(Filler)
        self.behind = False
        """More is there than the last look has read."""

    def read(self) -> News:
        """What is new. Meters come first: what the processes said is never older than they are."""
        self.behind = False
        meters = tuple(self._meters())
        names, quiet_s = self._look()
        pieces = [self._piece(self._directory / name) for name in sorted(names)]
        end = _json(self._directory / "end.json")
        return News(
            pieces=tuple(piece for piece in pieces if piece is not None),
            meters=meters,
            is_over=end is not None,
            exit_code=_whole(end.get("code")) if end else None,
            end_ns=_whole(end.get("end_ns")) if end else None,
            quiet_s=quiet_s,
        )

    def _look(self) -> tuple[list[str], float]:
        """The processes that may say more, and how long ago anything was written."""
        names, newest_s = [], 0.0
        try:
            with os.scandir(self._directory) as entries:
                for entry in entries:
                    stem = entry.name.rpartition(".")[0]
                    if stem in self._done:
                        continue
                    newest_s = max(newest_s, entry.stat().st_mtime)
                    if NOTES.fullmatch(entry.name):
                        names.append(entry.name)
        except OSError:
            pass
        return names, max(time.time() - newest_s, 0.0)

    def _new(self, path: Path) -> bytes:
        """The bytes appended since the look before."""
        seen = self._read.get(path, 0)
        try:
            with path.open("rb") as file:
                file.seek(seen)
                data = file.read(MOST_BYTES)
        except OSError:
            return b""
        self.behind = self.behind or len(data) == MOST_BYTES
        self._read[path] = seen + len(data)
        return data

    def _lines(self, path: Path) -> Iterator[dict[str, Any]]:
        """The new whole lines; half a line waits for its other half."""
        data = self._new(path)
        whole = data.rfind(b"\n") + 1
        self._read[path] = self._read.get(path, 0) - (len(data) - whole)
        for line in data[:whole].splitlines():
            try:
                found = json.loads(line)
            except ValueError:
                continue
            if isinstance(found, dict):
                yield found

    def _meters(self) -> Iterator[Meter]:
        for line in self._lines(self._directory / "meters.jsonl"):
            try:
                yield decode(Meter, line)
            except ValueError:
                continue

    def _piece(self, path: Path) -> Piece | None:
        notes = list(self._lines(path))
        filler = self._fillers[path.stem]
        events = list(filler.take(self._events(path.with_suffix(".events"))))
        if any(note.get("note") == "closing" for note in notes) and not self.behind:
            self._done.add(path.stem)
            events += filler.rest()
        if not notes and not events:
            return None
        times, codes = tuple(time_ns for time_ns, _ in events), tuple(code for _, code in events)
        try:
            return _piece(path, notes, times, codes)
        except (KeyError, TypeError, ValueError):  # a line that is JSON but not ours
            return Piece(path.stem, _pid(path), times_ns=times, codes=codes)

    def _events(self, path: Path) -> Iterator[Seen]:
        """Times and codes, without what was torn; a time whose code is still missing waits."""
        data = self._new(path)
        numbers = array("q", data[: len(data) - len(data) % WORD])
        back = len(data) % WORD
        if numbers and numbers[-1] >= SMALLEST_TIME:
            numbers.pop()
            back += WORD
        self._read[path] = self._read.get(path, 0) - back
        before = 0
        for number in numbers:
            if number < SMALLEST_TIME <= before:
                yield before, number
            before = number


def _piece(path: Path, notes: list[dict[str, Any]], times: tuple[int, ...], codes: tuple[int, ...]) -> Piece:
    last = {note["note"]: note for note in notes}
    process, worker = last.get("process"), last.get("worker", {})
    return Piece(
        process=path.stem,
        pid=_pid(path),
        start_ns=_whole(process["t"]) if process else None,
        rank=process.get("rank") if process else None,
        worker=worker.get("worker"),
        loader=worker.get("loader"),
        is_closed="closing" in last,
        times_ns=times,
        codes=codes,
        loaders=tuple(loader_facts(note) for note in notes if note["note"] == "loader"),
        epochs_planned=last.get("epochs", {}).get("epochs"),
        pulses=tuple(_pulse(note) for note in notes if note["note"] == "pulse"),
        odd=tuple(_odd(note) for note in notes if note["note"] == "odd"),
        trouble=tuple(str(note["text"]) for note in notes if note["note"] == "no_batch"),
    )


def _pulse(note: dict[str, Any]) -> Pulse:
    fields = ("device", "busy_s", "device_bytes", "graphs", "compile_s")
    return decode(Pulse, {"time_ns": note["t"], **{name: note.get(name) for name in fields}})


def _odd(note: dict[str, Any]) -> Odd:
    return decode(Odd, {"time_ns": note["t"], **{name: note[name] for name in ("value", "file", "line")}})


def _pid(path: Path) -> int:
    return int(path.name.split("-")[1])


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) else None


def _json(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
