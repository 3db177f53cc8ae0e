"""The simulated accelerator: a plain PyTorch loop runs on it with real autograd and real, tiny parameters.

    device = sim.Device(forward=7.9e-3, backward=8.2e-3, optimizer=2.3e-3)
    model = device.place(model, optimizer)
    for x, y in loader:
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item())                  # waits for the device, like any read of a value

The arithmetic itself happens on the CPU, in one thread, while it is queued, so keep the model tiny. Three
simplifications: the device has one stream; `non_blocking=True` is taken at its word, because memory cannot be
pinned on a machine without an accelerator; and a copy to the device shares the host's memory instead of spending
CPU on a second one.
"""

import time
import weakref
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, TypeVar

import torch
from torch import nn

from stoker.errors import UsageError
from stoker.sim.cost import PCIE_BYTES_PER_S, Cost, seconds
from stoker.sim.timeline import Event, Timeline

M = TypeVar("M", bound=nn.Module)

# The calls that need a value on the host, and so wait for the device: by name, because an observer may have
# wrapped the functions themselves.
_READS = frozenset(
    {"item", "nonzero", "equal", "allclose", "is_nonzero", "masked_select", "unique", "__contains__"}
    | {"__bool__", "__float__", "__int__", "__complex__", "__index__"}
)
# Those whose result is on the host, or is made from a plain tensor.
_LEAVES = frozenset({"cpu", "numpy", "tolist", "__array__", "__format__", "__repr__", "__reduce_ex__"})

_live: "weakref.WeakSet[Device]" = weakref.WeakSet()


def live() -> list["Device"]:
    """The simulated devices of this process, for those who observe it."""
    return list(_live)


class DeviceTensor(torch.Tensor):
    """A tensor on a simulated device: reading its value waits for the device."""

    simulated: ClassVar["Device"]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run on the CPU what torch was asked for, and wait for the device where a real one would make us."""
        entered_s = time.perf_counter()
        try:
            return cls._run(func, types, args, kwargs or {})
        finally:
            cls.simulated.timeline.forgive(entered_s)

    @classmethod
    def _run(cls, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        name = getattr(func, "__name__", "")
        leaves = name in _LEAVES or (name == "to" and _names_cpu(*args[1:], **kwargs))
        if leaves or name in _READS:
            cls.simulated.synchronize()
        if leaves:
            with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001  what torch's own subclasses use
                plain = args[0].as_subclass(torch.Tensor)
                return func(plain, *args[1:], **kwargs)
        return super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]


def _names_cpu(*args: Any, **kwargs: Any) -> bool:
    return any(isinstance(arg, (str, torch.device)) and str(arg) == "cpu" for arg in (*args, *kwargs.values()))


class Device:
    """An accelerator made of numbers: seconds of work, bytes of memory.

    Costs are seconds, functions of the batch size (`sim.linear`), or drawn from a recorded profile
    (`**sim.replay(profile)`). A batch that needs more than `memory_bytes` (`fixed_bytes` for parameters and
    optimizer, `sample_bytes` for each sample) raises what CUDA raises.
    """

    type = "sim"
    index = 0

    def __init__(
        self,
        *,
        forward: Cost = 0.0,
        backward: Cost = 0.0,
        optimizer: Cost = 0.0,
        copy_s: float = 20e-6,
        copy_bytes_per_s: float = PCIE_BYTES_PER_S,
        memory_bytes: int | None = None,
        fixed_bytes: int = 0,
        sample_bytes: int = 0,
    ) -> None:
        self.timeline = Timeline()
        self.costs: dict[str, Cost] = {"forward": forward, "backward": backward, "optimizer": optimizer}
        self.copy_s = copy_s
        self.copy_bytes_per_s = copy_bytes_per_s
        self.memory_bytes = memory_bytes
        self.fixed_bytes = fixed_bytes
        self.sample_bytes = sample_bytes
        self.memory_peak_bytes = fixed_bytes
        self.batch_size = 0
        # The arithmetic underneath stands for no work: it must not compete with the workers for the other cores.
        torch.set_num_threads(1)
        # One class for each device, so that every result of an operation knows its device.
        self._tensor_type = type("DeviceTensor", (DeviceTensor,), {"simulated": self})
        _live.add(self)

    def __repr__(self) -> str:
        return "sim"

    @property
    def busy_s(self) -> float:
        """Seconds of work queued so far."""
        return self.timeline.busy_s

    def synchronize(self) -> None:
        """Wait until the device has done all that is queued."""
        self.timeline.synchronize()

    def event(self) -> Event:
        """A new mark for this device's timeline, used like `torch.Event`."""
        return Event(self.timeline)

    def place(
        self,
        module: M,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        forward: Cost | None = None,
        backward: Cost | None = None,
    ) -> M:
        """Let calls of this module (and steps of this optimizer) take the device's time; returns the module.

        Without costs of its own the module is *the* model and takes the device's. A module with its own cost
        (a loss, a second network) takes just that.
        """
        main = forward is None and backward is None
        forward_cost = self.costs["forward"] if main else forward or 0.0
        backward_cost = self.costs["backward"] if main else backward or 0.0

        def before(_: nn.Module, args: Any, kwargs: Any) -> None:
            entered_s = time.perf_counter()
            batch_size = self._batch_size(args, kwargs)
            if main:
                self.batch_size = batch_size
                self._reserve(batch_size)
            cost_s = seconds(forward_cost, batch_size)
            self.timeline.forgive(entered_s)
            self.timeline.queue("forward", cost_s)

        def after(_: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            self._charge_backward(output, seconds(backward_cost, self._batch_size(args, kwargs)))

        module.register_forward_pre_hook(before, with_kwargs=True)
        module.register_forward_hook(after, with_kwargs=True)
        if optimizer is not None:
            optimizer.register_step_post_hook(self._charge_optimizer)
        return module

    def _charge_optimizer(self, *_: Any) -> None:
        self.timeline.queue("optimizer", seconds(self.costs["optimizer"], self.batch_size))

    def _charge_backward(self, output: Any, cost_s: float) -> None:
        """Queue the backward pass when its first gradient arrives, once for each forward."""
        charged = False

        def arrived(_: torch.Tensor) -> None:
            nonlocal charged
            if not charged:
                charged = True
                self.timeline.queue("backward", cost_s)

        for tensor in _tensors(output):
            if tensor.requires_grad:
                tensor.register_hook(arrived)

    def _batch_size(self, args: Any, kwargs: Any) -> int:
        tensors = list(_tensors((args, kwargs)))
        here = next((t for t in tensors if isinstance(t, self._tensor_type)), None)
        if here is None and tensors:
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, sim:0 and cpu! "
                "Move the batch with x.to(device)."
            )
        return int(here.size(0)) if here is not None and here.dim() else 1

    def _reserve(self, batch_size: int) -> None:
        needed = self.fixed_bytes + batch_size * self.sample_bytes
        if self.memory_bytes is not None and needed > self.memory_bytes:
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {_gib(batch_size * self.sample_bytes)}. GPU 0 has a total "
                f"capacity of {_gib(self.memory_bytes)} of which {_gib(self.memory_bytes - self.fixed_bytes)} is free."
            )
        self.memory_peak_bytes = max(self.memory_peak_bytes, needed)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """What torch calls where a Device stands for a device: `x.to(device)`, `torch.zeros(3, device=device)`."""
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name == "_parse_to":
            raise UsageError("a module is put on the simulated accelerator with device.place(model, optimizer)")
        device = next(arg for arg in (*args, *kwargs.values()) if isinstance(arg, Device))
        # Others patch `Tensor.to`, and torch hands on what it finds under that name.
        moves = name == "to" or any(arg is device for arg in args[1:])
        if not moves:
            kwargs["device"] = "cpu"
            return func(*args, **kwargs).as_subclass(device._tensor_type)  # noqa: SLF001  its own kind
        return device._copy_in(*(arg for arg in args if arg is not device), **kwargs)  # noqa: SLF001

    def _copy_in(self, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """`tensor.to(device, dtype, non_blocking)`, with the device taken out of the arguments."""
        entered_s = time.perf_counter()
        kwargs.pop("device", None)
        blocking = not (kwargs.pop("non_blocking", False) or True in args)
        dtype = next((arg for arg in args if isinstance(arg, torch.dtype)), kwargs.pop("dtype", tensor.dtype))
        values: Any = tensor.to(dtype=dtype, **kwargs)
        if isinstance(tensor, self._tensor_type):
            return values
        moved = values.as_subclass(self._tensor_type)
        self.timeline.forgive(entered_s)
        done_s = self.timeline.queue("copy", self.copy_s + values.nbytes / self.copy_bytes_per_s)
        if blocking:
            self.timeline.wait(done_s)
        return moved


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors inside what a module takes or returns."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from _each(value.values())
    elif isinstance(value, (list, tuple)):
        yield from _each(value)


def _each(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        yield from _tensors(value)


def _gib(count_bytes: int) -> str:
    return f"{count_bytes / 2**30:.2f} GiB"
