"""The hooks in torch's DataLoader: every wait for a batch, each loader apart, and epochs that may end early."""

import dis
import functools
import gc
import multiprocessing.util
import sys
import weakref
from _thread import get_ident
from collections.abc import Callable
from contextlib import suppress
from time import thread_time_ns
from types import CodeType, FrameType, ModuleType
from typing import Any, NoReturn

from stoker.observe.epochs import planned
from stoker.observe.frames import Frames, users_frame
from stoker.observe.pace import Epoch, Pace
from stoker.observe.patches import Patches
from stoker.observe.recorder import Recorder, clock
from stoker.observe.workers import ORDERED, ROW
from stoker.records.observed import ARG, Kind

STATE, CALLS = "_stoker_epoch", "_stoker_orders"
FINE_CALLS, SLOW_NS = 16, 50_000
"""Calls of a sampler that are timed by the CPU before it counts as quick, and from when on it does not any more."""
TOGETHER = 64
"""Calls of a quick sampler that make one row."""
WITH_DEFAULT = 2
"""Arguments of `next(iterator, default)`, which never raises."""
CAN_BEAR = ("lightning", "pytorch_lightning", "accelerate", "transformers")
"""Loops that call `next()` by hand and are known to take an early end well."""
MOST_TEXT = 400
"""Letters of an error that is noted."""


def install(torch: ModuleType, recorder: Recorder, patches: Patches, pace: Pace) -> None:
    """Instrument DataLoader and the iterators it makes."""
    module = torch.utils.data.dataloader
    known = Loaders(recorder)
    _watch_iter(torch, known, recorder, patches, pace)
    _watch_next(module._BaseDataLoaderIter, recorder, patches, pace)  # noqa: SLF001
    _watch_retire(module._MultiProcessingDataLoaderIter, recorder, patches)  # noqa: SLF001
    _watch_order(module._BaseDataLoaderIter, recorder, patches, pace)  # noqa: SLF001
    _watch_deaths(torch.utils.data._utils.signal_handling, recorder, patches)  # noqa: SLF001


class Loaders:
    """Numbers loaders as they are first used, and notes how each was configured.

    One that is made anew for every epoch keeps its number: used at the same line, configured alike, with gradients on
    or off as before, and no pass of its predecessor still going on.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._alike: dict[tuple[Any, ...], int] = {}
        self._passes: dict[int, weakref.ref[Any]] = {}
        self._frames = Frames(lambda *_, **__: None)

    def number(self, loader: Any, *, grad: bool) -> int:
        """The loader's number; facts about it are noted when it is new."""
        number = self._numbers.get(loader)
        if number is None:
            frame = users_frame(sys._getframe(1), self._frames)  # noqa: SLF001
            facts = _facts(loader, frame)
            key = (grad, *facts.values())
            number = self._alike.get(key)
            if number is None or self._goes_on(number):
                number = self._alike[key] = len(self._passes) + 1
                self._recorder.note("loader", loader=number, **facts)
            self._numbers[loader] = number
            self._passes.setdefault(number, weakref.ref(loader))
        return number

    def begun(self, number: int, iterator: Any) -> None:
        """A pass has begun."""
        self._passes[number] = weakref.ref(iterator)

    def _goes_on(self, number: int) -> bool:
        iterator = self._passes[number]()
        epoch: Epoch | None = getattr(iterator, STATE, None)
        return epoch is not None and not (epoch.ended or epoch.over)


def _watch_iter(torch: ModuleType, known: Loaders, recorder: Recorder, patches: Patches, pace: Pace) -> None:
    home, put = recorder.home, recorder.put
    kind = torch.utils.data.DataLoader
    original = kind.__iter__
    code = Kind.ITER << 1

    @functools.wraps(original)
    def __iter__(self: Any) -> Any:  # noqa: N807
        if get_ident() != home[0]:
            return _followed(self, original(self))
        recorder.ensure_running()
        if getattr(self, "num_workers", 0):
            _share_folder()
        grad = torch.is_grad_enabled()
        number = known.number(self, grad=grad)
        epoch = Epoch(number, length(self), False, grad, pace.backwards, source=self)
        if pace.probes is not None:
            pace.probes.interrupted()
        pace.begin(epoch)
        if not pace.epochs_noted and (found := planned(sys._getframe(1))) is not None:  # noqa: SLF001
            pace.epochs_noted = True
            recorder.note("epochs", epochs=found[0], name=found[1])
        recorder.iterating = number
        put(clock())
        put(code | number << ARG)
        try:
            iterator = original(self)
        finally:
            put(clock())
            put(code | 1 | number << ARG)
        setattr(iterator, STATE, epoch)
        known.begun(number, iterator)
        epoch.is_strict = functools.partial(is_strictly_zipped, weakref.ref(iterator))
        return iterator

    def _followed(self: Any, iterator: Any) -> Any:
        """Another thread's epoch: seen from the moment that thread turns out to be the one that trains."""
        if not pace.backwards:
            setattr(iterator, STATE, Epoch(known.number(self, grad=True), length(self), False, True, 0))
        return iterator

    patches.set(kind, "__iter__", __iter__)


def _share_folder() -> None:
    """Let workers put their sockets into a folder of the main process, which removes it at the end.

    A worker that is ended, as many are when a run ends early, would leave a folder of its own behind in /tmp.
    """
    with suppress(OSError):
        multiprocessing.util.get_temp_dir()


def _experiments(original: Any, recorder: Recorder, pace: Pace) -> Callable[[Any, Epoch], tuple[Any] | None]:
    """What gives the loop a batch of an experiment instead of the next real one."""
    put = recorder.put
    wait, none = Kind.NEXT << 1, Kind.EXHAUSTED << 1 | 1

    def experiment(iterator: Any, epoch: Epoch) -> tuple[Any] | None:
        assert pace.probes is not None
        epoch.trained = pace.backwards > epoch.backwards_before
        try:
            return pace.probes.turn(iterator, epoch, original)
        except StopIteration:
            number = epoch.loader << ARG
            for value in (clock(), wait | number, clock(), none | number):
                put(value)
            pace.ended(epoch)
            raise

    return experiment


def _watch_next(kind: Any, recorder: Recorder, patches: Patches, pace: Pace) -> None:
    home, put = recorder.home, recorder.put
    original = kind.__next__
    wait, none = Kind.NEXT << 1, Kind.EXHAUSTED << 1 | 1

    experiment = _experiments(original, recorder, pace)

    @functools.wraps(original)
    def __next__(self: Any) -> Any:  # noqa: N807
        epoch: Epoch | None = self.__dict__.get(STATE)
        if epoch is None or get_ident() != home[0]:
            return original(self)
        if pace.probes is not None and epoch.batches:
            given = experiment(self, epoch)
            if given is not None:
                return given[0]
        number = epoch.loader << ARG
        now = clock()
        if not epoch.first_ns:
            epoch.bearable = can_bear_an_end(sys._getframe(1))  # noqa: SLF001
            pace.first(epoch, now)
        over = epoch.over or (now >= pace.look_ns and pace.is_over(epoch, now))
        put(now)
        put(wait | number)
        try:
            batch = _let_go(self) if over else original(self)
        except StopIteration:
            put(clock())
            put(none | number)
            pace.ended(epoch)
            raise
        except BaseException as error:
            put(clock())
            put(wait | 1 | number)
            recorder.note("no_batch", loader=epoch.loader, text=f"{type(error).__name__}: {error}"[:MOST_TEXT])
            raise
        put(clock())
        put(wait | 1 | number)
        epoch.batches += 1
        if pace.probes is not None or epoch.batches == 1:
            _delivered(epoch, batch, recorder, pace)
        return batch

    patches.set(kind, "__next__", __next__)


def _watch_deaths(module: Any, recorder: Recorder, patches: Patches) -> None:
    """Torch raises a worker's death from a signal handler: wherever the script then is, seldom in the loader."""
    original = module._error_if_any_worker_fails  # noqa: SLF001

    @functools.wraps(original)
    def _error_if_any_worker_fails() -> None:
        try:
            original()
        except RuntimeError as error:
            recorder.note("no_batch", text=f"{type(error).__name__}: {error}"[:MOST_TEXT])
            raise

    patches.set(module, "_error_if_any_worker_fails", _error_if_any_worker_fails)


def _delivered(epoch: Epoch, batch: Any, recorder: Recorder, pace: Pace) -> None:
    if epoch.batches == 1:
        recorder.note("batch", loader=epoch.loader, samples=_samples(batch))
    pace.delivered(epoch, batch)


def _let_go(iterator: Any) -> NoReturn:
    """End an epoch early, and its workers, as the last batch would have done."""
    if getattr(iterator, "_workers", None) and not iterator._persistent_workers:  # noqa: SLF001
        iterator._shutdown_workers()  # noqa: SLF001
    raise StopIteration


def _watch_order(kind: Any, recorder: Recorder, patches: Patches, pace: Pace) -> None:
    """What the sampler takes on the main thread, and the order it gives.

    In CPU time: a sampler only computes, and others may have the core meanwhile. Asking for that takes a microsecond
    or more, though, so once a sampler has turned out to be quick, wall time is taken, until it is slow.
    """
    total = [0, 0]
    home = recorder.home
    original = kind._next_index  # noqa: SLF001

    @functools.wraps(original)
    def _next_index(self: Any) -> Any:
        if get_ident() != home[0]:
            return original(self)
        calls = self.__dict__.get(CALLS, 0)
        now = thread_time_ns if calls < FINE_CALLS else clock
        start = now()
        index = original(self)
        spent = now() - start
        self.__dict__[CALLS] = 0 if calls >= FINE_CALLS and spent > SLOW_NS else calls + 1
        total[0] += spent
        total[1] += 1
        if total[1] >= TOGETHER or calls < FINE_CALLS:
            row = (ORDERED, 0, *total)
            recorder.batches.extend(row + (0,) * (ROW - len(row)))
            total[:] = 0, 0
        if pace.probes is not None:
            epoch: Epoch | None = self.__dict__.get(STATE)
            pace.probes.orders(epoch.loader if epoch else recorder.iterating).recent.append(index)
        return index

    patches.set(kind, "_next_index", _next_index)


def _watch_retire(kind: Any, recorder: Recorder, patches: Patches) -> None:
    home, span = recorder.home, recorder.span
    original = kind._shutdown_workers  # noqa: SLF001

    @functools.wraps(original)
    def _shutdown_workers(self: Any) -> None:
        if getattr(self, "_shutdown", True) or get_ident() != home[0]:
            original(self)
            return
        start = clock()
        try:
            original(self)
        finally:
            span(Kind.RETIRE, start, clock())

    patches.set(kind, "_shutdown_workers", _shutdown_workers)


# ---- could the loop bear an early end? -------------------------------------------------------------------


def can_bear_an_end(frame: FrameType) -> bool:
    """True if the caller is a for loop, or a hand-written `next()` that is ready for StopIteration."""
    if frame.f_globals.get("__name__", "").partition(".")[0] in CAN_BEAR:
        return True
    return _bears(frame.f_code, frame.f_lasti)


def is_strictly_zipped(iterator: "weakref.ref[Any]") -> bool:
    """True if a `zip(…, strict=True)` holds this iterator: it would take an early end for an error."""
    holders = [one for one in gc.get_referrers(iterator()) if type(one) is tuple]
    found = (one.__reduce__() for one in gc.get_referrers(*holders) if type(one) is zip) if holders else ()
    return any(len(reduced) > 2 and reduced[2] for reduced in found)  # noqa: PLR2004  the state is `strict`


@functools.lru_cache(maxsize=256)
def _bears(code: CodeType, offset: int) -> bool:
    instruction = next((i for i in dis.get_instructions(code) if i.offset == offset), None)
    if instruction is None:
        return False
    if instruction.opname == "FOR_ITER":
        return True
    if instruction.opname == "CALL" and instruction.arg == WITH_DEFAULT:
        return "next" in code.co_names
    entries = dis._parse_exception_table(code)  # type: ignore[attr-defined]  # noqa: SLF001  3.11 has no public way
    handled = any(entry.start <= offset < entry.end for entry in entries)
    return handled and "StopIteration" in code.co_names


# ---- facts -----------------------------------------------------------------------------------------------


def length(loader: Any) -> int | None:
    """The number of batches of an epoch, if the loader knows; asking must not leave a trace."""
    try:
        from torch.utils.data import IterableDataset

        if isinstance(loader.dataset, IterableDataset):
            before = loader._IterableDataset_len_called  # noqa: SLF001
            try:
                return len(loader)
            finally:
                loader._IterableDataset_len_called = before  # noqa: SLF001
        return len(loader)
    except (TypeError, NotImplementedError, AttributeError):
        return None


def _samples(batch: Any, depth: int = 3) -> int | None:
    """The length of the first tensor in a batch."""
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else None
    if isinstance(batch, dict):
        batch = list(batch.values())
    if isinstance(batch, (list, tuple)) and batch and depth:
        if isinstance(batch[0], (str, bytes, int, float)):
            return len(batch)
        return _samples(batch[0], depth - 1)
    return None


def _facts(loader: Any, frame: FrameType | None) -> dict[str, Any]:
    sampler = loader.sampler
    try:
        samples = len(loader.dataset)
    except (TypeError, NotImplementedError):
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
    }
