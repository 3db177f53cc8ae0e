"""Inside a process that makes batches: some are made under a profile, twice, or with an eye on text."""

import cProfile
import sys
from collections.abc import Callable
from types import CodeType
from typing import Any

from stoker.observe import probe_cold
from stoker.observe.probe_counts import files_read
from stoker.observe.probe_repeats import Repeats
from stoker.observe.probe_text import Follower, is_users
from stoker.observe.recorder import Recorder, clock
from stoker.records.codec import encode
from stoker.records.probes import Call, Making

PLAN: list[str] = []
"""Labels of the batches still to come, in a process that a bench started; empty everywhere else."""
MOST_CALLS = 25
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
    if label == "repeats":
        return _repeated(fetch, samples, recorder)
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
    place = next((_place(call) for call in ranked if is_users(call.file)), None)
    text = (text_s or None, place if text_s else None)
    recorder.note("making", **encode(Making(samples, seconds, calls, *text, tuple(ranked), files_read())))
    return batch


def _repeated(fetch: Callable[[], Any], samples: int, recorder: Recorder) -> Any:
    """The batch twice: which calls come to the same, though the batch may not?"""
    repeats = Repeats()
    before = sys.getprofile()
    sys.setprofile(repeats)
    try:
        fetch()
        repeats.second()
        start_s = repeats.now_s
        batch = fetch()
        seconds = repeats.now_s - start_s
    except Exception:  # noqa: BLE001  there may be no batch of so few samples; the looks that follow are at whole ones
        return None
    finally:
        sys.setprofile(before)
    same_s, place = sum(repeats.places.values()), max(repeats.places, key=repeats.places.__getitem__, default=None)
    making = Making(samples, seconds, 0, None, None, (), same_s=same_s, same_place=place)
    recorder.note("making", **encode(making))
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
    recorder.note("making", **encode(Making(samples, seconds, 0, follower.seconds, follower.place, ())))
    return batch
