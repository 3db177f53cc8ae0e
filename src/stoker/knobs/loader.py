"""Scope loader: the arguments of a DataLoader."""

from collections.abc import Callable, MutableMapping
from typing import Any

from stoker.errors import UsageError
from stoker.knobs.kinds import Knob, OneOf, Switch, Undo, Whole
from stoker.records.observed import Value

Arguments = MutableMapping[str, Any]
_NEEDS_WORKERS = ("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout")


def _argument(name: str, default: Value) -> Callable[[Arguments], Value]:
    def read(arguments: Arguments) -> Value:
        found: Value = arguments.get(name, default)
        return default if found is None else found

    return read


def _edit(arguments: Arguments, **changes: Any) -> Undo:
    """Change arguments in place; a change to None removes the argument."""
    before = dict(arguments)

    def undo() -> None:
        arguments.clear()
        arguments.update(before)

    for name, value in changes.items():
        if value is None:
            arguments.pop(name, None)
        else:
            arguments[name] = value
    return undo


def _put_num_workers(arguments: Arguments, value: int) -> Undo:
    # DataLoader refuses these without workers.
    dropped = {} if value else dict.fromkeys(_NEEDS_WORKERS)
    return _edit(arguments, num_workers=value, **dropped)


def _put_with_workers(name: str) -> Callable[[Arguments, Value], Undo]:
    def put(arguments: Arguments, value: Value) -> Undo:
        if value and not arguments.get("num_workers"):
            raise UsageError(f"{name} is {value}, but num_workers is 0; it needs at least one worker")
        return _edit(arguments, **{name: value})

    return put


def _put_batch_size(arguments: Arguments, value: int) -> Undo:
    if arguments.get("batch_sampler") is not None:
        raise UsageError("batch_size cannot be set: this loader's batch_sampler decides it")
    return _edit(arguments, batch_size=value)


class WorkerThreads:
    """A `worker_init_fn` that limits threads, then calls the user's own; a class, so that spawn can pickle it."""

    def __init__(self, threads: int, then: Callable[[int], None] | None) -> None:
        self.threads = threads
        self.then = then

    def __call__(self, worker: int) -> None:
        """Runs in the worker, before its first sample."""
        import torch

        torch.set_num_threads(self.threads)
        if self.then is not None:
            self.then(worker)


def _read_worker_threads(arguments: Arguments) -> Value:
    init = arguments.get("worker_init_fn")
    return init.threads if isinstance(init, WorkerThreads) else 1  # DataLoader's own default


def _put_worker_threads(arguments: Arguments, value: int) -> Undo:
    init = arguments.get("worker_init_fn")
    then = init.then if isinstance(init, WorkerThreads) else init
    return _edit(arguments, worker_init_fn=WorkerThreads(value, then))


def knobs() -> list[Knob]:
    """Those of a DataLoader."""

    def plain(name: str) -> Callable[[Arguments, Value], Undo]:
        return lambda arguments, value: _edit(arguments, **{name: value})

    contexts = OneOf(("fork", "spawn", "forkserver"))
    return [
        Knob(
            "num_workers", "processes that make batches; 0 makes them on the main thread", "loader",
            Whole(0), "medium", False, _argument("num_workers", 0), _put_num_workers,
        ),
        Knob(
            "prefetch_factor", "batches each worker keeps ready", "loader",
            Whole(1), "medium", False, _argument("prefetch_factor", 2), _put_with_workers("prefetch_factor"),
        ),
        Knob(
            "pin_memory", "copy batches into page-locked memory, so that copies to the device can overlap",
            "loader", Switch(), "low", False, _argument("pin_memory", False), plain("pin_memory"),
        ),
        Knob(
            "persistent_workers", "keep the workers alive from one epoch to the next", "loader",
            Switch(), "low", False, _argument("persistent_workers", False), _put_with_workers("persistent_workers"),
        ),
        Knob(
            "batch_size", "samples a step", "loader",
            Whole(1), "high", True, _argument("batch_size", 1), _put_batch_size,
        ),
        Knob(
            "multiprocessing_context", "how workers are started", "loader",
            contexts, "medium", False, _argument("multiprocessing_context", "fork"),
            _put_with_workers("multiprocessing_context"),
        ),
        Knob(
            "in_order", "deliver batches in the sampler's order; false delivers whatever is ready", "loader",
            Switch(), "medium", True, _argument("in_order", True), plain("in_order"),
        ),
        Knob(
            "worker_threads", "threads that torch uses inside each worker", "loader",
            Whole(1), "low", False, _read_worker_threads, _put_worker_threads,
        ),
    ]  # fmt: skip
