"""The table of knobs: settings that can be changed from outside, without touching the user's script.

Each knob knows its legal values, how to read and apply itself on its target, how to undo that, what it risks and
whether it can change what the training computes. It knows nothing of observing or trying.

    undo = KNOBS["num_workers"].apply(arguments, 4)
    ...
    undo()

The target depends on the knob's scope: `loader` takes the keyword arguments for a DataLoader (a dict, edited in
place), `model` a module, `optimizer` an optimizer, and `process` nothing at all.
"""

import difflib
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any, Literal

from stoker.errors import UsageError
from stoker.records.observed import Value

Undo = Callable[[], None]
Arguments = MutableMapping[str, Any]
Scope = Literal["loader", "process", "model", "optimizer"]
Risk = Literal["low", "medium", "high"]


@dataclass(frozen=True, slots=True)
class Whole:
    """Whole numbers from `low` up."""

    low: int

    def check(self, value: Value) -> bool:
        """True if value is legal."""
        return isinstance(value, int) and not isinstance(value, bool) and value >= self.low

    def parse(self, text: str) -> Value:
        """The value a user typed, not yet checked."""
        return int(text) if text.lstrip("-").isdecimal() else text

    def __str__(self) -> str:
        return f"{self.low} or more"


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of a few words."""

    words: tuple[str, ...]

    def check(self, value: Value) -> bool:
        """True if value is legal."""
        return value in self.words

    def parse(self, text: str) -> Value:
        """The value a user typed, not yet checked."""
        return text

    def __str__(self) -> str:
        return ", ".join(self.words)


@dataclass(frozen=True, slots=True)
class Switch:
    """On or off."""

    def check(self, value: Value) -> bool:
        """True if value is legal."""
        return isinstance(value, bool)

    def parse(self, text: str) -> Value:
        """The value a user typed, not yet checked."""
        return {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}.get(text.lower(), text)

    def __str__(self) -> str:
        return "true or false"


@dataclass(frozen=True, slots=True)
class Knob:
    """One setting. `changes_results` is true if even the last bit of a trained weight could differ."""

    name: str
    meaning: str
    scope: Scope
    values: Whole | OneOf | Switch
    risk: Risk
    changes_results: bool
    read: Callable[[Any], Value]
    put: Callable[[Any, Any], Undo]

    def apply(self, target: Any, value: Value) -> Undo:
        """Set the knob on its target; the function returned puts everything back."""
        return self.put(target, self.check(value))

    def check(self, value: Value) -> Value:
        """The value itself if it is legal."""
        if not self.values.check(value):
            raise UsageError(f"{self.name} is {value}; expected {self.values}. Leave it out to keep the script's own.")
        return value

    def parse(self, text: str) -> Value:
        """The legal value that a user typed."""
        return self.check(self.values.parse(text.strip()))


def find(name: str) -> Knob:
    """The knob of this name; an unknown name is answered with the nearest one."""
    if name in KNOBS:
        return KNOBS[name]
    near = difflib.get_close_matches(name, KNOBS, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known knobs: {', '.join(KNOBS)}"
    raise UsageError(f"no knob is called {name}; {hint}")


# ---- scope loader: the arguments of a DataLoader ---------------------------------------------------------

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


def _loader_knobs() -> list[Knob]:
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


# ---- scope process: torch's own switches -----------------------------------------------------------------


def _read_tf32(_: Any) -> Value:
    import torch

    return torch.get_float32_matmul_precision() != "highest"


def _put_tf32(_: Any, value: bool) -> Undo:
    import torch

    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if value else "highest")
    return lambda: torch.set_float32_matmul_precision(precision)


def _read_cudnn_benchmark(_: Any) -> Value:
    import torch

    return bool(torch.backends.cudnn.benchmark)


def _put_cudnn_benchmark(_: Any, value: bool) -> Undo:
    import torch

    before = torch.backends.cudnn.benchmark

    def undo() -> None:
        torch.backends.cudnn.benchmark = before

    torch.backends.cudnn.benchmark = value
    return undo


# ---- scope model -----------------------------------------------------------------------------------------


def _put_forward(model: Any, forward: Callable[..., Any], **marks: Any) -> Undo:
    """Replace a module's forward on this instance, and mark it so that the knob can be read back."""
    before = {name: model.__dict__[name] for name in ("forward", *marks) if name in model.__dict__}

    def undo() -> None:
        for name in ("forward", *marks):
            model.__dict__.pop(name, None)
        model.__dict__.update(before)

    model.__dict__.update(forward=forward, **marks)
    return undo


def _read_amp(model: Any) -> Value:
    return str(getattr(model, "_stoker_amp", "off"))


def _put_amp(model: Any, value: str) -> Undo:
    import torch

    inner = model.__dict__.get("_stoker_plain_forward", model.forward)
    if value == "off":
        return _put_forward(model, inner, _stoker_amp="off")
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[value]
    device = next((p.device.type for p in model.parameters()), "cpu")

    def forward(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(device, dtype=dtype):
            return inner(*args, **kwargs)

    return _put_forward(model, forward, _stoker_amp=value, _stoker_plain_forward=inner)


_LAST = {4: "channels_last", 5: "channels_last_3d"}


def _as_last(tensor: Any) -> Any:
    """The tensor with its channels last, if it is an image or a volume."""
    import torch

    if not isinstance(tensor, torch.Tensor) or tensor.dim() not in _LAST:
        return tensor
    return tensor.to(memory_format=getattr(torch, _LAST[tensor.dim()]))


def _read_channels_last(model: Any) -> Value:
    return bool(getattr(model, "_stoker_channels_last", False))


def _put_channels_last(model: Any, value: bool) -> Undo:
    import torch

    handles = []

    def convert(_: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(_as_last(arg) for arg in args)

    formats = {name: p.data for name, p in model.named_parameters() if p.dim() in _LAST}
    before = model.__dict__.get("_stoker_channels_last", False)
    for parameter in model.parameters():
        if parameter.dim() in _LAST:
            wanted = _as_last(parameter.data) if value else parameter.data.contiguous()
            parameter.data = wanted
    if value:
        handles.append(model.register_forward_pre_hook(convert))
    model.__dict__["_stoker_channels_last"] = value

    def undo() -> None:
        for handle in handles:
            handle.remove()
        model.__dict__["_stoker_channels_last"] = before
        for name, parameter in model.named_parameters():
            if name in formats:  # values may have been trained meanwhile: keep them, restore the layout
                old = formats[name]
                parameter.data = torch.empty_strided(
                    old.size(), old.stride(), dtype=parameter.dtype, device=parameter.device
                ).copy_(parameter.data)

    return undo


def _read_compile(model: Any) -> Value:
    return getattr(model, "_compiled_call_impl", None) is not None


def _put_compile(model: Any, value: bool) -> Undo:
    before = model._compiled_call_impl  # noqa: SLF001  torch has no public way to undo Module.compile

    def undo() -> None:
        model._compiled_call_impl = before  # noqa: SLF001

    if value:
        model.compile()
    else:
        model._compiled_call_impl = None  # noqa: SLF001
    return undo


# ---- scope optimizer -------------------------------------------------------------------------------------


def _read_accumulation(optimizer: Any) -> Value:
    return int(getattr(optimizer, "_stoker_accumulation", 1))


def _put_accumulation(optimizer: Any, value: int) -> Undo:
    """Let `step` and `zero_grad` act on every n-th call only, on the mean of the gradients gathered."""
    names = ("step", "zero_grad", "_stoker_accumulation")
    before = {name: optimizer.__dict__[name] for name in names if name in optimizer.__dict__}
    step, zero_grad = optimizer.step, optimizer.zero_grad
    calls = 0

    def step_sometimes(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls % value:
            return None
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.div_(value)
        return step(*args, **kwargs)

    def zero_sometimes(*args: Any, **kwargs: Any) -> None:
        if calls % value == 0:
            zero_grad(*args, **kwargs)

    def undo() -> None:
        for name in names:
            optimizer.__dict__.pop(name, None)
        optimizer.__dict__.update(before)

    optimizer.__dict__.update(step=step_sometimes, zero_grad=zero_sometimes, _stoker_accumulation=value)
    return undo


def _compute_knobs() -> list[Knob]:
    return [
        Knob(
            "amp", "the precision that the model's matmuls and convolutions run in", "model",
            OneOf(("off", "bf16", "fp16")), "medium", True, _read_amp, _put_amp,
        ),
        Knob(
            "tf32", "let fp32 matmuls use the faster TF32 units", "process",
            Switch(), "low", True, _read_tf32, _put_tf32,
        ),
        Knob(
            "channels_last", "keep images and volumes in the layout that convolutions like best", "model",
            Switch(), "low", True, _read_channels_last, _put_channels_last,
        ),
        Knob(
            "compile", "compile the model with torch.compile", "model",
            Switch(), "medium", True, _read_compile, _put_compile,
        ),
        Knob(
            "cudnn_benchmark", "let cuDNN time its algorithms for each new shape", "process",
            Switch(), "low", True, _read_cudnn_benchmark, _put_cudnn_benchmark,
        ),
        Knob(
            "accumulation", "step the optimizer on every n-th batch only", "optimizer",
            Whole(1), "medium", True, _read_accumulation, _put_accumulation,
        ),
    ]  # fmt: skip


KNOBS: dict[str, Knob] = {knob.name: knob for knob in (*_loader_knobs(), *_compute_knobs())}
