"""Scopes process, model and optimizer: how the training computes."""

import functools
import inspect
import os
from _thread import get_ident
from collections.abc import Callable
from typing import Any

from stoker.knobs.kinds import Knob, OneOf, Switch, Undo, Whole
from stoker.records.observed import Value

# ---- scope process: torch's own switches -----------------------------------------------------------------


def _read_tf32(_: Any) -> Value:
    import torch

    return torch.get_float32_matmul_precision() != "highest"


def _put_tf32(_: Any, value: bool) -> Undo:
    import torch

    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if value else "highest")
    return lambda: torch.set_float32_matmul_precision(precision)


def _read_threads(_: Any) -> Value:
    import torch

    return int(torch.get_num_threads())


def _put_threads(_: Any, value: int) -> Undo:
    import torch

    before, found = torch.get_num_threads(), torch.set_num_threads
    put = inspect.unwrap(found)
    mine = os.getpid(), get_ident()

    @functools.wraps(put)
    def hold(nthreads: int) -> None:
        if (os.getpid(), get_ident()) != mine:  # workers and other threads have their own number
            put(nthreads)

    def undo() -> None:
        torch.set_num_threads = found
        put(before)

    put(value)
    torch.set_num_threads = hold  # the script may set its own later
    return undo


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


def knobs() -> list[Knob]:
    """Those of the model, its optimizer and torch itself."""
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
            "threads", "threads that torch computes with in the main process", "process",
            Whole(1), "low", True, _read_threads, _put_threads,
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
