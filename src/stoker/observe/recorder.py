"""The child's notebook: times and codes appended on the hot path, written out by one quiet thread.

An event is two numbers in one array, its time and its code, appended by C functions: no object is allocated that
the garbage collector would count. Codes are small and times are large, so a pair torn by a signal is recognised.
"""

import _thread
import json
import os
import sys
import threading
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from stoker.observe.collector import Pause
from stoker.observe.doze import Doze
from stoker.observe.frames import Frames
from stoker.observe.marks import Marks
from stoker.records.observed import ARG, Kind

FLUSH_S = 0.25
"""What a kill -9 can cost at most, with a wide margin to the promised second."""
LAST_S = 2.0
"""How long the end waits for the thread that writes."""
SAMPLE_S = 0.010
SAMPLER_SHARE = 0.003
"""The sampler slows itself down until it takes no more than this share of one core."""
SLOWEST_SAMPLE_S = 0.1
DOZING_SAMPLE_S = 0.03
"""While hooks doze steps are alike, and each look makes one of them wait."""
BEAT_S = 1.0
TROUBLE_LETTERS = 300

T = TypeVar("T")

clock = time.perf_counter_ns


class Recorder:
    """Everything one process writes down. `put(clock()); put(code)` is an event; only the home thread may."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.home = [threading.main_thread().ident or _thread.get_ident()]
        self.events = array("q")
        self.put: Callable[[int], None] = self.events.append
        self.samples = array("q")
        self.batches = array("q")
        self.device = array("q")
        self.marks = Marks()
        self.module_calls = [0]
        self.doze = Doze(self.put, self.module_calls)
        self.own_ns = 0
        self.iterating: int | None = None
        self.device_watched = False
        self.dead = False
        self.sample_s = SAMPLE_S
        self.beat: Callable[[], None] | None = None
        self.frames = Frames(self.note)
        self._notes: list[dict[str, Any]] = []
        self._files: dict[str, int] = {}
        self._stem = ""
        self._lock = _thread.allocate_lock()
        self.pause = Pause()
        self._running = False
        self._stop = False
        self._failed: set[str] = set()

    # ---- writing down

    def mark(self, kind: Kind, argument: int = 0) -> None:
        """An event without length."""
        self.put(clock())
        self.put(kind << 1 | argument << ARG)

    def span(self, kind: Kind, start_ns: int, end_ns: int, argument: int = 0) -> None:
        """An event seen after the fact."""
        code = kind << 1 | argument << ARG
        for value in (start_ns, code, end_ns, code | 1):
            self.put(value)

    def note(self, note: str, **facts: Any) -> None:
        """A rare fact, as one line of JSON."""
        self._notes.append({"note": note, "t": clock(), **facts})

    def attempt(self, look: Callable[..., T], *arguments: Any) -> T | None:
        """What looking at the script's own objects brings. They may raise anything, and the script must not notice."""
        try:
            return look(*arguments)
        except Exception as error:  # noqa: BLE001
            if look.__name__ not in self._failed:  # once is enough
                self._failed.add(look.__name__)
                self.note("trouble", text=f"{look.__name__} failed: {error!r}"[:TROUBLE_LETTERS])
            return None

    # ---- the quiet thread

    def ensure_running(self) -> None:
        """Start the thread that samples and writes, unless it runs. No `threading.Thread`: scripts count those."""
        if not self._running:
            self._running, self._stop = True, False
            _thread.start_new_thread(self._run, ())

    def _run(self) -> None:
        period_s, flushed, beaten = self.sample_s, clock(), clock()
        spent = time.thread_time_ns()
        try:
            while not self._stop:
                time.sleep(max(period_s, DOZING_SAMPLE_S) if self.doze.asleep[0] else period_s)
                self._sample()
                now = clock()
                if now - flushed > FLUSH_S * 1e9:
                    self.flush()
                    used, spent = time.thread_time_ns() - spent, time.thread_time_ns()
                    self.own_ns += used
                    wanted = period_s * (used / (now - flushed)) / SAMPLER_SHARE
                    period_s = min(max(wanted, self.sample_s), SLOWEST_SAMPLE_S)
                    flushed = now
                if self.beat is not None and now - beaten > BEAT_S * 1e9:
                    self.beat()
                    beaten = now
        except Exception as error:  # noqa: BLE001  the user's script must not notice
            self.dead = True
            self._complain(f"recording stopped: {error!r}")
        finally:
            self._running = False

    def _sample(self) -> None:
        with self.pause:
            if self._stop:
                return
            frame = sys._current_frames().get(self.home[0])  # noqa: SLF001  the documented way to see another thread
            if frame is not None:
                self.samples.extend((clock(), self.frames.place(frame)))

    # ---- files

    def flush(self, wait_s: float = 0.0) -> None:
        """Append what is new to this process's files; a full disk ends the recording, never the run."""
        if not (self._lock.acquire(timeout=wait_s) if wait_s else self._lock.acquire(blocking=False)):
            return
        try:
            if self.dead:
                self._forget()
                return
            self._write_new()
        except OSError as error:
            self.dead = True
            self._forget()
            self._complain(f"recording stopped: {error}")
        finally:
            self._lock.release()

    def _write_new(self) -> None:
        for name, column in self._columns():
            count = len(column)
            if count:
                new = column[:count]
                self._append(name, new.tobytes())
                del column[:count]
                if column is self.events:
                    self.doze.look(new)
        count = len(self._notes)
        if count:
            self._append("notes", "".join(json.dumps(note) + "\n" for note in self._notes[:count]).encode())
            del self._notes[:count]

    def _columns(self) -> tuple[tuple[str, "array[int]"], ...]:
        columns = (("events", self.events), ("samples", self.samples))
        return (*columns, ("batches", self.batches), ("device", self.device), ("marks", self.marks.column))

    def _append(self, name: str, data: bytes) -> None:
        if name not in self._files:
            if not self._stem:
                self._stem = f"{os.getpid()}-{clock()}"
            path = self.directory / f"process-{self._stem}.{name}"
            self._files[name] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        view = memoryview(data)
        while view:
            view = view[os.write(self._files[name], view) :]

    def _forget(self) -> None:
        for _, column in self._columns():
            del column[:]
        del self._notes[:]

    def _complain(self, text: str) -> None:
        try:
            (self.directory / f"trouble-{os.getpid()}.txt").write_text(text)
        except OSError:
            print(f"stoker: {text}; the script goes on", file=sys.stderr)

    # ---- ends

    def before_fork(self) -> None:
        """Wait until no sample is being taken: a child would inherit the lock that it takes in the interpreter."""
        self.pause.acquire()

    def after_fork_here(self) -> None:
        """Samples may be taken again."""
        self.pause.release()

    def after_fork(self) -> None:
        """In a forked child: nothing of the parent's is ours, and its thread is not here."""
        self.home[0] = _thread.get_ident()
        self._forget()
        self.doze.forget()
        self.module_calls[0], self.own_ns = 0, 0
        self.frames.forget()
        self._files, self._stem = {}, ""
        self._lock = _thread.allocate_lock()
        self.pause.after_fork()
        self._running = False
        self.beat = None
        self.note("process", **about_process())

    def close(self) -> None:
        """Write the last of it; the thread ends by itself."""
        self.doze.wake()
        with self.pause:  # no stack is walked from here on
            self._stop = True
        own = {"module_calls": self.module_calls[0], "own_ns": self.own_ns}
        self.note("closing", **own, event_ns=_cost_of_an_event(), call_ns=_cost_of_a_call())
        self.flush(LAST_S)  # the thread may be writing just now, and what it has not seen yet must not be lost


def about_process() -> dict[str, Any]:
    """What identifies this process."""
    rank = os.environ.get("RANK", "")
    return {"pid": os.getpid(), "parent": os.getppid(), "rank": int(rank) if rank.isdecimal() else None}


# ---- what it costs ---------------------------------------------------------------------------------------

_TIMES = 300


def _cost_of_an_event() -> int:
    """Nanoseconds of one event, here and now: two appends, a clock, and half of the wrapper around both."""
    spare = array("q")
    put = spare.append

    def hook(*_: Any, **__: Any) -> None:
        if _thread.get_ident() == 0:
            return
        put(clock())
        put(0)

    return _time(hook)


def _cost_of_a_call() -> int:
    """Nanoseconds that the hook adds to a module call that is not outermost."""
    inside = True

    def original(*_: Any, **__: Any) -> None:
        pass

    def hook(*args: Any, **kwargs: Any) -> None:
        if inside:
            original(*args, **kwargs)

    return max(_time(hook) - _time(original), 0)


def _time(function: Callable[..., None]) -> int:
    best = 1 << 62
    for _ in range(3):
        start = clock()
        for _ in range(_TIMES):
            function(1)
        best = min(best, clock() - start)
    return best // _TIMES
