"""The hooks in torch's DataLoader: every wait for a batch, each loader apart, and epochs that may end early."""

import dis
import functools
import sys
from _thread import get_ident
from collections.abc import Callable
from time import thread_time_ns
from types import CodeType, FrameType, ModuleType
from typing import Any, NoReturn

from stoker.observe.pace import Epoch, Pace
from stoker.observe.passes import STATE, Passes
from stoker.observe.patches import Patches
from stoker.observe.probe_ahead import dismiss
from stoker.observe.probe_container import shared_memory
from stoker.observe.probe_gather import shape_of
from stoker.observe.recorder import Recorder, clock
from stoker.observe.workers import ORDERED, ROW, weigh
from stoker.records.observed import ARG, Kind

CALLS = "_stoker_orders"
FINE_CALLS, SLOW_NS = 16, 50_000
"""Calls of a sampler that are timed by the CPU before it counts as quick, and from when on it does not any more."""
TOGETHER = 64
"""Calls of a quick sampler that make one row."""
WITH_DEFAULT = 2
"""Arguments of `next(iterator, default)`, which never raises."""
CAN_BEAR = ("lightning", "pytorch_lightning", "accelerate", "transformers")
"""Loops that call `next()` by hand and are known to take an early end well."""
MOST_HANDLERS, NAMES_BEFORE = 8, 6
"""Handlers around a line that are looked at, and instructions before a match among which its names are."""
MOST_TEXT = 400
"""Letters of an error that is noted."""


def install(torch: ModuleType, recorder: Recorder, patches: Patches, pace: Pace) -> None:
    """Instrument DataLoader and the iterators it makes."""
    module = torch.utils.data.dataloader
    _watch_iter(torch, recorder, patches, pace)
    _watch_next(module._BaseDataLoaderIter, recorder, patches, pace)  # noqa: SLF001
    _watch_retire(module._MultiProcessingDataLoaderIter, recorder, patches)  # noqa: SLF001
    _watch_order(module._BaseDataLoaderIter, recorder, patches, pace)  # noqa: SLF001
    _watch_deaths(torch.utils.data._utils.signal_handling, recorder, patches, pace)  # noqa: SLF001


def _watch_iter(torch: ModuleType, recorder: Recorder, patches: Patches, pace: Pace) -> None:
    home, put = recorder.home, recorder.put
    kind = torch.utils.data.DataLoader
    original, inner = kind.__iter__, kind._get_iterator  # noqa: SLF001
    passes = Passes(torch, recorder, pace)
    code = Kind.ITER << 1

    @functools.wraps(original)
    def __iter__(self: Any) -> Any:  # noqa: N807
        if get_ident() != home[0]:
            return passes.elsewhere(self, original(self))
        epoch = passes.begin(self, sys._getframe(1))  # noqa: SLF001
        if epoch is None:
            return original(self)
        put(clock())
        put(code | epoch.loader << ARG)
        try:
            return passes.made(self, original(self))  # persistent workers keep their iterator
        finally:
            put(clock())
            put(code | 1 | epoch.loader << ARG)

    @functools.wraps(inner)
    def _get_iterator(self: Any) -> Any:
        return passes.made(self, inner(self))

    patches.set(kind, "__iter__", __iter__)
    patches.set(kind, "_get_iterator", _get_iterator)


def _experiments(original: Any, recorder: Recorder, pace: Pace) -> Callable[[Any, Epoch], tuple[Any] | None]:
    """What gives the loop a batch of an experiment instead of the next real one."""
    put = recorder.put
    wait, none = Kind.NEXT << 1, Kind.EXHAUSTED << 1 | 1

    def experiment(iterator: Any, epoch: Epoch) -> tuple[Any] | None:
        assert pace.probes is not None
        epoch.trained = pace.backwards > epoch.backwards_before
        try:
            given = pace.probes.turn(iterator, epoch, original)
            pace.trying = not pace.probes.are_over
            return given  # noqa: TRY300
        except StopIteration:
            number = epoch.loader << ARG
            for value in (clock(), wait | number, clock(), none | number):
                put(value)
            pace.ended(epoch)
            raise

    return experiment


def _looking(original: Any, recorder: Recorder, pace: Pace) -> Callable[[Any, Epoch], tuple[Any] | bool]:
    """What is done before a batch is asked for."""
    experiment = _experiments(original, recorder, pace)

    def look(iterator: Any, epoch: Epoch) -> tuple[Any] | bool:
        """The batch of an experiment, or whether the epoch is over."""
        if (pace.trying or epoch.held) and epoch.batches:
            given = experiment(iterator, epoch)
            if given is not None:
                pace.batches += 1
                return given
        now = clock()
        if not epoch.first_ns:
            epoch.bearable = bool(recorder.attempt(can_bear_an_end, sys._getframe(2)))  # noqa: SLF001
            pace.first(epoch, now)
        return epoch.over or (now >= pace.look_ns and pace.is_over(epoch, now))

    return look


def _watch_next(kind: Any, recorder: Recorder, patches: Patches, pace: Pace) -> None:
    home, put = recorder.home, recorder.put
    original = kind.__next__
    wait = Kind.NEXT << 1
    look = _looking(original, recorder, pace)
    failed = _failing(recorder, pace)
    doze = recorder.doze

    @functools.wraps(original)
    def __next__(self: Any) -> Any:  # noqa: N807
        epoch: Epoch | None = self._stoker_epoch
        if epoch is None or get_ident() != home[0]:
            return original(self)
        if epoch.batches >= doze.at and not epoch.held:
            doze.turn(epoch.loader, epoch.batches)
            if doze.asleep[0]:
                return lie_down(self, epoch)
        found = look(self, epoch)
        if isinstance(found, tuple):
            return found[0]
        number = epoch.loader << ARG
        put(clock())
        put(wait | number)
        try:
            batch = _let_go(self) if found else original(self)
        except BaseException as error:
            failed(error, epoch)
            raise
        put(clock())
        put(wait | 1 | number)
        epoch.batches += 1
        pace.batches += 1
        if pace.probes is not None or epoch.batches == 1:
            _delivered(epoch, batch, recorder, pace)
        return batch

    lie_down = _dozing(kind, __next__, recorder, patches, pace)
    patches.set(kind, STATE, None)  # asking an instance for its dict would make its attributes slower ever after
    patches.set(kind, "__next__", __next__)


def _dozing(kind: Any, awake: Any, recorder: Recorder, patches: Patches, pace: Pace) -> Callable[[Any, Epoch], Any]:
    """What `__next__` is while hooks doze: as little as can be, because a fast step notices every look."""
    put, doze, failed = recorder.put, recorder.doze, _failing(recorder, pace)
    original = awake.__wrapped__
    epoch: Any = None  # not its iterator: a loop that is left must be able to let go of that, and of its workers
    begin = 0

    @functools.wraps(original)
    def __next__(self: Any) -> Any:  # noqa: N807
        now = clock()
        if now >= doze.until_ns:
            doze.at = 0
        if self._stoker_epoch is not epoch or epoch.batches >= doze.at:
            return awake(self)
        put(now)
        put(begin)
        try:
            batch = original(self)
        except BaseException as error:
            failed(error, epoch)
            raise
        put(clock())
        put(begin | 1)
        epoch.batches += 1
        pace.batches += 1
        return batch

    def lie_down(iterator: Any, its_epoch: Epoch) -> Any:
        nonlocal epoch, begin
        epoch, begin = its_epoch, Kind.NEXT << 1 | its_epoch.loader << ARG
        if kind.__next__ is awake:
            kind.__next__ = __next__
        return __next__(iterator)

    def change(asleep: int) -> None:
        if not asleep and kind.__next__ is __next__:
            kind.__next__ = awake

    doze.changed.append(change)
    patches.on_restore(lambda: doze.changed.remove(change))
    return lie_down


def _failing(recorder: Recorder, pace: Pace) -> Callable[[BaseException, Epoch], None]:
    """What is written down where no batch came: the epoch is over, or something went wrong."""
    put, doze = recorder.put, recorder.doze

    def failed(error: BaseException, epoch: Epoch) -> None:
        over = isinstance(error, StopIteration)
        put(clock())
        put((Kind.EXHAUSTED if over else Kind.NEXT) << 1 | 1 | epoch.loader << ARG)
        doze.wake()
        if over:
            pace.ended(epoch)
        else:
            _note_failure(recorder, error)

    return failed


def _watch_deaths(module: Any, recorder: Recorder, patches: Patches, pace: Pace) -> None:
    """Torch raises a worker's death from a signal handler: wherever the script then is, seldom in the loader."""
    original = module._error_if_any_worker_fails  # noqa: SLF001

    @functools.wraps(original)
    def _error_if_any_worker_fails() -> None:
        try:
            original()
        except RuntimeError as error:
            if pace.is_ended:  # its workers are ended with it, whatever they were at
                return
            _note_failure(recorder, error)
            raise

    patches.set(module, "_error_if_any_worker_fails", _error_if_any_worker_fails)


def _note_failure(recorder: Recorder, error: BaseException) -> None:
    """An error instead of a batch. A worker's has its traceback in it, and what happened at its end."""
    text = f"{type(error).__name__}: {error}".strip()
    shm_bytes, shm_free = shared_memory()
    half = MOST_TEXT // 2
    short = text if len(text) <= MOST_TEXT else f"{text[:half]} … {text[-half:]}"
    recorder.note("no_batch", text=short, shm_bytes=shm_bytes, shm_free=shm_free)


def _delivered(epoch: Epoch, batch: Any, recorder: Recorder, pace: Pace) -> None:
    if epoch.batches == 1:
        nbytes, arrays = recorder.attempt(weigh, batch) or (0, 0)
        samples = recorder.attempt(_samples, batch)
        recorder.note("batch", loader=epoch.loader, samples=samples, arrays=arrays, nbytes=nbytes)
    pace.delivered(epoch, batch)


def _samples(batch: Any, depth: int = 3) -> int | None:
    """The length of the first tensor in a batch."""
    shape = shape_of(batch)
    if shape is not None:
        return int(shape[0]) if shape else None
    if isinstance(batch, dict):
        batch = list(batch.values())
    if isinstance(batch, (list, tuple)) and batch and depth:
        if isinstance(batch[0], (str, bytes, int, float)):
            return len(batch)
        return _samples(batch[0], depth - 1)
    return None


def _let_go(iterator: Any) -> NoReturn:
    """End an epoch early, and its workers, as the last batch would have done."""
    if getattr(iterator, "_workers", None) and not iterator._persistent_workers:  # noqa: SLF001
        dismiss(iterator)
    raise StopIteration


def _watch_order(kind: Any, recorder: Recorder, patches: Patches, pace: Pace) -> None:
    """What the sampler takes on the main thread, and the order it gives.

    In CPU time: a sampler only computes, and others may have the core meanwhile. Asking for that takes a microsecond
    or more, though, so once a sampler has turned out to be quick, wall time is taken, until it is slow.
    """
    total = [0, 0]
    home, asleep = recorder.home, recorder.doze.asleep
    original = kind._next_index  # noqa: SLF001

    @functools.wraps(original)
    def _next_index(self: Any) -> Any:
        if asleep[0] or get_ident() != home[0]:  # asleep: somebody has put something around this one
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
            epoch: Epoch | None = self._stoker_epoch
            pace.probes.orders(epoch.loader if epoch else recorder.iterating).recent.append(index)
        return index

    patches.set_awake(kind, "_next_index", _next_index, recorder.doze.changed)


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


@functools.lru_cache(maxsize=256)
def _bears(code: CodeType, offset: int) -> bool:
    instruction = next((i for i in dis.get_instructions(code) if i.offset == offset), None)
    if instruction is None:
        return False
    if instruction.opname == "FOR_ITER":
        return True
    if instruction.opname == "CALL" and instruction.arg == WITH_DEFAULT:
        return "next" in code.co_names
    return "StopIteration" in code.co_names and _is_handled(code, offset)


def _is_handled(code: CodeType, offset: int) -> bool:
    """True if a StopIteration that is raised here comes to a handler of its own, also through a `with` or `finally`."""
    entries = dis._parse_exception_table(code)  # type: ignore[attr-defined]  # noqa: SLF001  3.11 has no public way
    instructions = list(dis.get_instructions(code))
    for _ in range(MOST_HANDLERS):
        entry = next((one for one in entries if one.start <= offset < one.end), None)
        if entry is None:
            return False
        handler = [one for one in instructions if one.offset >= entry.target]
        matches = [i for i, one in enumerate(handler) if one.opname in ("CHECK_EXC_MATCH", "RERAISE")]
        for i in matches:
            if handler[i].opname == "RERAISE":  # none of its clauses: on to whoever is around it
                offset = handler[i].offset
                break
            names = handler[max(i - NAMES_BEFORE, 0) : i]
            if any(one.opname.startswith("LOAD") and one.argval == "StopIteration" for one in names):
                return True
        else:
            return False
    return False
