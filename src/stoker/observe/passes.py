"""Passes over loaders: each loader is numbered, each pass followed through the iterator that torch makes for it."""

import functools
import gc
import math
import multiprocessing.util
import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from types import FrameType, ModuleType
from typing import Any

from stoker.observe.epochs import planned
from stoker.observe.frames import Frames, users_frame
from stoker.observe.pace import Epoch, Pace
from stoker.observe.recorder import Recorder

STATE = "_stoker_epoch"
LOOKED_FOR = 8
"""Passes of a loader in which the number of epochs is looked for: some scripts begin one in every step."""


class Loaders:
    """Numbers loaders as they are first used, and notes how each was configured.

    One that is made anew for every epoch keeps its number: used at the same line, configured alike, with gradients on
    or off as before, and no pass of its predecessor still going on. A data set that is there beside it is another one:
    a trainer may run its training and its validation through the same line.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._alike: dict[tuple[Any, ...], list[int]] = {}
        self._passes: dict[int, weakref.ref[Any]] = {}
        self._datasets: dict[int, Callable[[], Any]] = {}
        self.frames = Frames(lambda *_, **__: None)

    def number(self, loader: Any, grad: bool) -> int:
        """The loader's number; facts about it are noted when it is new."""
        number = self._numbers.get(loader)
        if number is None:
            frame = users_frame(sys._getframe(1), self.frames)  # noqa: SLF001
            facts = _facts(loader, frame)
            key = (grad, *facts.values())
            alike = [one for one in self._alike.get(key, ()) if not self._goes_on(one) and self._may_be(one, loader)]
            number = alike[-1] if alike else len(self._passes) + 1
            if not alike:
                self._alike.setdefault(key, []).append(number)
                self._recorder.note("loader", loader=number, **facts)
            self._numbers[loader] = number
            self._datasets[number] = _held_weakly(loader.dataset)
            self._passes.setdefault(number, weakref.ref(loader))
        return number

    def begun(self, number: int, iterator: Any) -> None:
        """A pass has begun."""
        self._passes[number] = weakref.ref(iterator)

    def _may_be(self, number: int, loader: Any) -> bool:
        """True if it reads what that one read, or that is gone."""
        dataset = self._datasets[number]()
        return dataset is None or dataset is loader.dataset

    def _goes_on(self, number: int) -> bool:
        iterator = self._passes[number]()
        epoch: Epoch | None = getattr(iterator, STATE, None)
        return epoch is not None and not (epoch.ended or epoch.over)


def _held_weakly(dataset: Any) -> Callable[[], Any]:
    """Who holds a script's data would keep its memory; a plain list cannot be held otherwise, and counts as gone."""
    try:
        return weakref.ref(dataset)
    except TypeError:
        return lambda: None


class Passes:
    """Begins an epoch for each pass, and lets torch's iterator carry it.

    Whatever the script's own loader raises when it is looked at, the pass goes on; it is then not observed.
    """

    def __init__(self, torch: ModuleType, recorder: Recorder, pace: Pace) -> None:
        self._torch, self._recorder, self._pace = torch, recorder, pace
        self._known = Loaders(recorder)
        self._kind = torch.utils.data.dataloader._BaseDataLoaderIter  # noqa: SLF001

    def begin(self, loader: Any, caller: FrameType) -> Epoch | None:
        """A pass begins; None if nothing can be said of its loader."""
        recorder, pace = self._recorder, self._pace
        recorder.ensure_running()
        if getattr(loader, "num_workers", 0):
            _share_folder()
        grad = self._torch.is_grad_enabled()
        number = recorder.attempt(self._known.number, loader, grad)
        if number is None:
            return None
        epoch = Epoch(number, length(loader), False, grad, pace.backwards, source=loader)
        recorder.doze.begin(number)
        if pace.probes is not None:
            recorder.attempt(pace.probes.interrupted)
        pace.begin(epoch)
        pace.feeds_itself |= grad and not getattr(loader, "num_workers", 0)
        if grad and not pace.epochs_noted and epoch.ordinal < LOOKED_FOR:
            self._note_planned(epoch, caller)
        recorder.iterating = number
        loader.__dict__[STATE] = epoch
        return epoch

    def _note_planned(self, epoch: Epoch, caller: FrameType) -> None:
        found = self._recorder.attempt(planned, caller, self._known.frames.is_users)
        if found is None or (found.is_steps and not epoch.length):
            return
        self._pace.epochs_noted = True
        epochs = math.ceil(found.count / epoch.length) if found.is_steps and epoch.length else found.count
        steps = found.count if found.is_steps else None
        self._recorder.note("epochs", epochs=epochs, steps=steps, name=found.name)

    def made(self, loader: Any, iterator: Any) -> Any:
        """Something to iterate over was made: torch's own iterator, or one that a subclass has put around it."""
        if isinstance(iterator, self._kind):
            epoch: Epoch | None = loader.__dict__.pop(STATE, None)
            if epoch is not None:
                setattr(iterator, STATE, epoch)
                self._known.begun(epoch.loader, iterator)
                epoch.is_strict = functools.partial(is_strictly_zipped, weakref.ref(iterator))
        return iterator

    def elsewhere(self, loader: Any, iterator: Any) -> Any:
        """Another thread's pass: seen from the moment that thread turns out to be the one that trains."""
        number = None if self._pace.backwards else self._recorder.attempt(self._known.number, loader, True)
        if number is not None and isinstance(iterator, self._kind):
            setattr(iterator, STATE, Epoch(number, length(loader), False, True, 0, source=loader))
        return iterator


def _share_folder() -> None:
    """Let workers put their sockets into a folder of the main process, which removes it at the end.

    A worker that is ended, as many are when a run ends early, would leave a folder of its own behind in /tmp.
    """
    with suppress(OSError):
        multiprocessing.util.get_temp_dir()


def is_strictly_zipped(iterator: "weakref.ref[Any]") -> bool:
    """True if a `zip(…, strict=True)` holds this iterator: it would take an early end for an error."""
    holders = [one for one in gc.get_referrers(iterator()) if type(one) is tuple]
    found = (one.__reduce__() for one in gc.get_referrers(*holders) if type(one) is zip) if holders else ()
    return any(len(reduced) > 2 and reduced[2] for reduced in found)  # noqa: PLR2004  the state is `strict`


# ---- facts -----------------------------------------------------------------------------------------------


def length(loader: Any) -> int | None:
    """The number of batches of an epoch, if the loader knows; asking must not leave a trace."""
    try:
        if _is_stream(loader):
            before = loader._IterableDataset_len_called  # noqa: SLF001
            try:
                return len(loader)
            finally:
                loader._IterableDataset_len_called = before  # noqa: SLF001
        return len(loader)
    except Exception:  # noqa: BLE001  the script's own code answers
        return None


def _facts(loader: Any, frame: FrameType | None) -> dict[str, Any]:
    sampler = loader.sampler
    try:
        samples = len(loader.dataset)
    except Exception:  # noqa: BLE001  the script's own code answers
        samples = None
    context = loader.multiprocessing_context
    size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
    return {
        "kind": type(loader).__name__,
        "dataset": type(loader.dataset).__name__,
        "length": length(loader),
        "samples": samples,
        "batch_size": size if isinstance(size, int) else None,
        "num_workers": loader.num_workers,
        "prefetch_factor": loader.prefetch_factor,
        "pin_memory": bool(loader.pin_memory),
        "persistent_workers": bool(loader.persistent_workers),
        "shuffled": "Sequential" not in type(sampler).__name__ and "Infinite" not in type(sampler).__name__,
        "start_method": context.get_start_method() if context is not None else None,
        "file": frame.f_code.co_filename if frame else "",
        "line": frame.f_lineno if frame else 0,
        "stream": _is_stream(loader),
    }


def _is_stream(loader: Any) -> bool:
    from torch.utils.data import IterableDataset

    return isinstance(loader.dataset, IterableDataset)
