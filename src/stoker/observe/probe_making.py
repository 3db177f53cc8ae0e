"""Inside a process that makes batches: some are made under a profile, or with an eye on text that becomes integers."""

import cProfile
import sys
import sysconfig
import time
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, cast

from stoker.observe import probe_cold
from stoker.observe.probe_counts import files_read
from stoker.observe.recorder import Recorder, clock
from stoker.records.codec import encode
from stoker.records.probes import Call, Making

PLAN: list[str] = []
"""Labels of the batches still to come, in a process that a bench started; empty everywhere else."""
MOST_CALLS = 25
SHORTEST_TEXT = 12
FEWEST_IDS = 3
FOLLOWED_S = 5.0
"""How long calls are followed at most: a look at each of a million would take longer than the calls."""
TEXT_LIBRARIES = ("tokenizers", "sentencepiece", "tiktoken", "youtokentome", "fastBPE")
"""Compiled tokenizers, whose arguments a profile cannot see."""


class Start:
    """A `worker_init_fn` that leaves the plan, limits threads if asked, then calls the user's own."""

    def __init__(self, labels: list[str], threads: int | None, then: Callable[[int], None] | None) -> None:
        self.labels = labels
        self.threads = threads
        self.then = then

    def __call__(self, worker: int) -> None:
        """Runs in the worker, before its first sample."""
        if self.then is not None:
            self.then(worker)
        if self.threads is not None:
            import torch

            torch.set_num_threads(self.threads)
        PLAN[:] = self.labels


def make(label: str, fetch: Callable[[], Any], samples: int, recorder: Recorder) -> Any:
    """Make one batch of the plan as its label says."""
    if label == "profile":
        return _profiled(fetch, samples, recorder)
    if label == "text":
        return _followed(fetch, samples, recorder)
    if label == "cold":
        return _chilled(fetch, recorder)
    return fetch()


def _profiled(fetch: Callable[[], Any], samples: int, recorder: Recorder) -> Any:
    profile = cProfile.Profile()
    start = clock()
    try:
        batch = profile.runcall(fetch)
    except ValueError:  # another profiler is at work
        return fetch()
    seconds = (clock() - start) / 1e9
    entries = [_call(entry) for entry in profile.getstats()]
    text_s = sum(call.own_s for call in entries if any(name in call.function for name in TEXT_LIBRARIES))
    ranked = sorted(entries, key=lambda call: -call.total_s)[:MOST_CALLS]
    calls = sum(call.calls for call in entries)
    place = next((_place(call) for call in ranked if _is_users(call.file)), None)
    text = (text_s or None, place if text_s else None)
    recorder.note("making", **encode(Making(samples, seconds, calls, *text, tuple(ranked), files_read())))
    return batch


def _chilled(fetch: Callable[[], Any], recorder: Recorder) -> Any:
    """The batch, and then the files that the batches so far came from."""
    batch = fetch()
    found = probe_cold.measure(files_read())
    if found is not None:
        recorder.note("cold", **encode(found))
    return batch


def _call(entry: Any) -> Call:
    code = entry.code
    if isinstance(code, CodeType):
        where = code.co_filename, code.co_firstlineno, code.co_qualname
    else:
        where = "", 0, str(code)
    return Call(*where, entry.callcount, entry.inlinetime, entry.totaltime)


def _place(call: Call) -> str:
    return f"{call.file}:{call.line} {call.function}"


_LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))


def _is_users(file: str) -> bool:
    return bool(file) and not file.startswith((*_LIBRARIES, "<")) and "stoker/observe" not in file


# ---- text in, integers out ---------------------------------------------------------------------------------


class Follower:
    """A profile function that times calls which turn text into integers.

    The outermost that are given text; and where none of these returns integers, the innermost of the user's own in
    which text was at hand: a data set that has the text itself and splits it in `__getitem__`.
    """

    def __init__(self) -> None:
        self._until = time.perf_counter() + FOLLOWED_S
        self.seconds = 0.0
        self.places: dict[str, float] = {}
        self._open: dict[FrameType, float] = {}
        self._begun: dict[FrameType, float] = {}
        self._fed: set[FrameType] = set()

    def __call__(self, frame: FrameType, event: str, result: Any) -> None:
        """What `sys.setprofile` calls."""
        if event == "call":
            now = time.perf_counter()
            if now > self._until:
                sys.setprofile(None)
            elif not self._open and _takes_text(frame):
                self._open[frame] = now
                self._fed.update(self._around(frame))
            elif _is_users(frame.f_code.co_filename):
                self._begun[frame] = now
        elif event == "c_call" and _is_text(getattr(result, "__self__", None)):
            self._fed.update(self._around(frame))
        elif event == "return":
            self._returned(frame, result)

    def _returned(self, frame: FrameType, result: Any) -> None:
        given, own = self._open.pop(frame, None), self._begun.pop(frame, None)
        begun = own if given is None and frame in self._fed and not self._open else given
        self._fed.discard(frame)
        if begun is not None and result is not None and gives_integers(result):
            took = time.perf_counter() - begun
            self.seconds += took
            code = frame.f_code
            place = f"{code.co_filename}:{code.co_firstlineno} {code.co_qualname}"
            self.places[place] = self.places.get(place, 0.0) + took
            self._fed.difference_update(self._around(frame))  # it is counted

    def place(self) -> str | None:
        """Where most of it happened."""
        return max(self.places, key=lambda name: self.places[name], default=None)

    def _around(self, frame: FrameType) -> list[FrameType]:
        """The user's own calls that are under way, this one included."""
        found, at = [], cast("FrameType | None", frame)
        while at is not None:
            if at in self._begun:
                found.append(at)
            at = at.f_back
        return found


def _followed(fetch: Callable[[], Any], samples: int, recorder: Recorder) -> Any:
    follower = Follower()
    before = sys.getprofile()
    start = clock()
    sys.setprofile(follower)
    try:
        batch = fetch()
    finally:
        sys.setprofile(before)
    seconds = (clock() - start) / 1e9
    recorder.note("making", **encode(Making(samples, seconds, 0, follower.seconds, follower.place(), ())))
    return batch


def _takes_text(frame: FrameType) -> bool:
    code = frame.f_code
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    values = frame.f_locals
    return any(_is_text(values.get(name)) for name in names)


def _is_text(value: Any) -> bool:
    if isinstance(value, (list, tuple)) and value:
        value = value[0]
    if isinstance(value, bytes):
        return len(value) >= SHORTEST_TEXT and value[:256].isascii() and b"\0" not in value[:256]
    return isinstance(value, str) and len(value) >= SHORTEST_TEXT and (" " in value or "\n" in value)


def gives_integers(value: Any, depth: int = 2) -> bool:
    """True for what a tokenizer returns: a list, array or tensor of integers, or something that holds one."""
    dtype = getattr(value, "dtype", None)
    if dtype is not None:
        name = str(dtype)  # of eight bits are pixels, not ids
        return ("int" in name or "long" in name) and "int8" not in name and getattr(value, "ndim", 0) > 0
    if isinstance(value, (list, tuple)):
        if len(value) >= FEWEST_IDS and all(type(item) is int for item in value[:8]):
            return True
        return depth > 0 and bool(value) and gives_integers(value[0], depth - 1)
    if isinstance(value, (str, bytes, int, float, bool)) or depth <= 0:
        return False
    if hasattr(value, "values") and callable(value.values):
        return any(gives_integers(item, depth - 1) for item in list(value.values())[:8])
    return any(gives_integers(getattr(value, name, None), 0) for name in ("ids", "input_ids"))
