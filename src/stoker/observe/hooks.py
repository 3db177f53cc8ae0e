"""The hooks in torch itself: forward, backward, optimizer, sections without gradients, collector, and the device."""

import functools
import gc
import sys
import weakref
from _thread import get_ident
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

from stoker.observe.frames import Frames, users_frame
from stoker.observe.pace import Pace
from stoker.observe.patches import Patches
from stoker.observe.recorder import Recorder, clock
from stoker.observe.spans import spanned
from stoker.records.observed import ARG, DEVICE_WORK, Kind

# ---- forward ---------------------------------------------------------------------------------------------


class Roots:
    """For each module that was called outermost: the code of its span, and how many modules it holds."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.known: dict[int, tuple[int, int, Any]] = {}

    def meet(self, module: Any) -> tuple[int, int, Any]:
        """A module without parameters is a loss, or a small helper that is none of the model."""
        number = id(module)
        kind, size = self._recorder.attempt(_root, module) or (Kind.FORWARD, 1)
        gone = weakref.ref(module, lambda _: self.known.pop(number, None))
        self.known[number] = (kind << 1, size, gone)
        return self.known[number]


def _root(module: Any) -> tuple[Kind, int]:
    """Whether a module is a model, and how many modules it holds; scripts write methods of these names themselves."""
    kind = Kind.FORWARD if next(iter(module.parameters()), None) is not None else Kind.LOSS
    return kind, sum(1 for _ in module.modules())


def watch_forward(torch: ModuleType, recorder: Recorder, patches: Patches, _: Pace) -> None:
    """Only the outermost call is written down: for all others the hook is one comparison."""
    home, put, calls = recorder.home, recorder.put, recorder.module_calls
    enabled = torch.is_grad_enabled
    original = torch.nn.Module.__call__
    compiling = torch.compiler.is_dynamo_compiling
    roots = Roots(recorder)
    known, meet = roots.known, roots.meet
    marks, asleep = recorder.marks, recorder.doze.asleep
    inside, evaluating = False, 1 << ARG
    # torch's own __call__ only chooses between these two; doing that here saves every inner call a Python frame.
    simple = original is getattr(torch.nn.Module, "_wrapped_call_impl", None)

    @functools.wraps(original)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        nonlocal inside
        if (inside or asleep[0]) and simple:
            chosen = self._compiled_call_impl
            return self._call_impl(*args, **kwargs) if chosen is None else chosen(*args, **kwargs)
        if inside or asleep[0] or get_ident() != home[0] or compiling():
            return original(self, *args, **kwargs)
        code, size, _ = known.get(id(self)) or meet(self)
        if not self.training:
            code |= evaluating
        calls[0] += size
        inside = True
        put(clock())
        put(code)
        if marks.make is not None and enabled():
            marks.begin()
        try:
            return original(self, *args, **kwargs)
        finally:
            inside = False
            put(clock())
            put(code | 1)

    patches.set_awake(torch.nn.Module, "__call__", __call__, recorder.doze.changed)


# ---- backward and optimizer ------------------------------------------------------------------------------


def watch_backward(torch: ModuleType, recorder: Recorder, patches: Patches, pace: Pace) -> None:
    """Every backward; the first one says which thread trains."""
    home, put, asleep = recorder.home, recorder.put, recorder.doze.asleep
    begin = Kind.BACKWARD << 1

    def watched(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:  # Tensor.backward ends up here too
            # As `spanned` does it, in one frame less.
            if not pace.backwards:  # the thread that trains is the one to watch, if the main thread does not
                home[0] = get_ident()
            pace.backwards += 1
            if asleep[0] or get_ident() != home[0]:
                return original(*args, **kwargs)
            put(clock())
            put(begin)
            try:
                return original(*args, **kwargs)
            finally:
                put(clock())
                put(begin | 1)

        return backward

    plain, ours = torch.autograd.backward, watched(torch.autograd.backward)
    batches = 0

    def change(asleep: int) -> None:
        """Off while hooks doze, unless somebody has put something around it. About one a batch was not counted."""
        nonlocal batches
        if torch.autograd.backward is (ours if asleep else plain):
            pace.backwards += 0 if asleep else pace.batches - batches
            batches = pace.batches
            torch.autograd.backward = plain if asleep else ours

    patches.set(torch.autograd, "backward", ours)
    patches.set(torch.autograd, "grad", watched(torch.autograd.grad))
    recorder.doze.changed.append(change)
    patches.on_restore(lambda: recorder.doze.changed.remove(change))


def watch_optimizers(torch: ModuleType, recorder: Recorder, patches: Patches, pace: Pace) -> None:
    """Steps through torch's own hooks, the rest by wrapping.

    They stay while hooks doze: another thread may be going through torch's list of them.
    """
    home, put, asleep = recorder.home, recorder.put, recorder.doze.asleep
    module = import_module("torch.optim.optimizer")  # torch.optim hides its own submodule
    marks = recorder.marks
    numbers: dict[int, tuple[int, Any]] = {}
    code = Kind.OPTIMIZER << 1

    def meet(optimizer: Any) -> tuple[int, Any]:
        key = id(optimizer)
        recorder.ensure_running()
        recorder.frames.stepping(sys._getframe(1))  # noqa: SLF001
        numbers[key] = (pace.meet_optimizer(), weakref.ref(optimizer, lambda _: numbers.pop(key, None)))
        return numbers[key]

    def before(optimizer: Any, *__: Any) -> None:
        if not asleep[0] and get_ident() == home[0]:
            number, _ = numbers.get(id(optimizer)) or meet(optimizer)
            put(clock())
            put(code | number << ARG)

    def after(optimizer: Any, *_: Any) -> None:
        if not asleep[0] and get_ident() == home[0]:
            number = numbers.get(id(optimizer), (0, None))[0]
            put(clock())
            put(code | 1 | number << ARG)
            if marks.make is not None:
                marks.end()
            pace.stepped(number)

    patches.on_restore(module.register_optimizer_step_pre_hook(before).remove)
    patches.on_restore(module.register_optimizer_step_post_hook(after).remove)
    for owner in (module.Optimizer, torch.nn.Module):
        patches.set_awake(owner, "zero_grad", spanned(owner.zero_grad, recorder, Kind.ZERO), recorder.doze.changed)
    helpers = [(torch.amp.GradScaler, name) for name in ("step", "unscale_", "update")]
    helpers += [(torch.nn.utils, "clip_grad_norm_"), (torch.nn.utils, "clip_grad_value_")]
    for owner, name in helpers:
        patches.set(owner, name, spanned(getattr(owner, name), recorder, Kind.OPTIMIZER))


# ---- sections and collector ------------------------------------------------------------------------------


def watch_sections(torch: ModuleType, recorder: Recorder, patches: Patches, _: Pace) -> None:
    """`no_grad` and `inference_mode`."""
    for section in (torch.no_grad, torch.inference_mode):
        _watch_section(section, recorder, patches)


def _watch_section(section: Any, recorder: Recorder, patches: Patches) -> None:
    """`with torch.no_grad():`, as a block or as a decorator."""
    home, put, doze = recorder.home, recorder.put, recorder.doze
    asleep = doze.asleep
    enter, leave = section.__enter__, section.__exit__
    code = Kind.NO_GRAD << 1

    @functools.wraps(enter)
    def __enter__(self: Any) -> Any:  # noqa: N807
        if get_ident() == home[0]:
            if asleep[0]:
                doze.section()
            put(clock())
            put(code)
        return enter(self)

    @functools.wraps(leave)
    def __exit__(self: Any, *details: Any) -> Any:  # noqa: N807
        try:
            return leave(self, *details)
        finally:
            if get_ident() == home[0]:
                put(clock())
                put(code | 1)

    patches.set(section, "__enter__", __enter__)
    patches.set(section, "__exit__", __exit__)


def watch_collector(_: ModuleType, recorder: Recorder, patches: Patches, __: Pace) -> None:
    """The garbage collector's pauses."""
    home, put = recorder.home, recorder.put
    code = Kind.GC << 1

    def collecting(phase: str, _: dict[str, int]) -> None:
        if get_ident() == home[0]:
            put(clock())
            put(code if phase == "start" else code | 1)

    patches.add(gc.callbacks, collecting)
    _watch_collect(recorder, patches)


def _watch_collect(recorder: Recorder, patches: Patches) -> None:
    """Who asks for a collection: each place is noted the first time, the tenth, the hundredth …"""
    home, original = recorder.home, gc.collect
    calls: Counter[tuple[str, int, str]] = Counter()
    frames = Frames(lambda *_, **__: None)

    @functools.wraps(original)
    def collect(*args: Any, **kwargs: Any) -> int:
        frame = users_frame(sys._getframe(1), frames) if get_ident() == home[0] else None  # noqa: SLF001
        if frame is not None:
            place = frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname
            calls[place] += 1
            if str(calls[place]).strip("0") == "1":
                recorder.note("collect", place=f"{place[0]}:{place[1]} {place[2]}", calls=calls[place])
        return original(*args, **kwargs)

    patches.set(gc, "collect", collect)


# ---- device ----------------------------------------------------------------------------------------------

_WAITS = ("item", "tolist", "numpy", "cpu", "__bool__", "__float__", "__int__")


def watch_accelerator(torch: ModuleType, recorder: Recorder, patches: Patches, _: Pace) -> None:
    """A real device, if there is one."""
    if torch.accelerator.is_available():
        watch_device(torch, recorder, patches)
        recorder.marks.make = functools.partial(torch.Event, enable_timing=True)


def watch_device(torch: ModuleType, recorder: Recorder, patches: Patches) -> None:
    """Copies and waits; only where there is a device, because a CPU tensor's `.item()` waits for nothing."""
    if recorder.device_watched:
        return
    recorder.device_watched = True
    for name in _WAITS:
        patches.set(torch.Tensor, name, _waiting(getattr(torch.Tensor, name), recorder))
    for name in ("to", "cuda", "copy_"):
        patches.set(torch.Tensor, name, _copying(getattr(torch.Tensor, name), recorder))
    for owner in (torch.cuda, torch.accelerator):
        patches.set(owner, "synchronize", spanned(owner.synchronize, recorder, Kind.SYNC))


def _is_remote(tensor: Any) -> bool:
    """True if this tensor lives on a device: a real one, or the simulated one, which only looks like the CPU."""
    return not tensor.is_cpu or hasattr(type(tensor), "simulated")


def _waiting(original: Callable[..., Any], recorder: Recorder) -> Callable[..., Any]:
    home, span = recorder.home, recorder.span

    @functools.wraps(original)
    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        if get_ident() != home[0] or not _is_remote(self):
            return original(self, *args, **kwargs)
        start = clock()
        try:
            return original(self, *args, **kwargs)
        finally:
            span(Kind.SYNC, start, clock())

    return wait


def _copying(original: Callable[..., Any], recorder: Recorder) -> Callable[..., Any]:
    """A copy to the device is a transfer; a copy from it waits until the device is done: a sync."""
    home, span = recorder.home, recorder.span

    @functools.wraps(original)
    def copy(self: Any, *args: Any, **kwargs: Any) -> Any:
        if get_ident() != home[0]:
            return original(self, *args, **kwargs)
        start = clock()
        out = original(self, *args, **kwargs)
        if out is not self or args:
            here, there = _is_remote(self), _is_remote(out)
            if here != there:
                waits = not (kwargs.get("non_blocking") or any(arg is True for arg in args))
                span(Kind.SYNC if here else Kind.COPY, start, clock(), int(waits))
        return out

    return copy


def watch_simulated(module: ModuleType, recorder: Recorder, patches: Patches) -> None:
    """The simulated accelerator: its waits and copies go through the same methods as a real one's."""
    watch_device(sys.modules["torch"], recorder, patches)
    original = module.Device.__init__

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        original(self, *args, **kwargs)
        recorder.marks.make = self.event

    patches.set(module.Device, "__init__", __init__)
    patches.set(module.Device, "synchronize", spanned(module.Device.synchronize, recorder, Kind.SYNC))
    patches.set(module.Timeline, "queue", _queueing(module.Timeline.queue, recorder))


def _queueing(original: Callable[..., float], recorder: Recorder) -> Callable[..., float]:
    """What is queued, and when the device does it: three numbers, so that its timeline can be drawn.

    The simulation may let work begin before it was queued, to make good for its own cost on the host. What finds the
    device idle is drawn where it was queued, and what follows keeps its distance to it.
    """
    put = recorder.device.extend
    places = {kind: i for i, kind in enumerate(DEVICE_WORK)}
    other = places["other"]
    late_ns = done_ns = 0

    @functools.wraps(original)
    def queue(self: Any, kind: str, seconds: float) -> float:
        nonlocal late_ns, done_ns
        queued_ns = clock()
        done_s = original(self, kind, seconds)
        begin_ns = int((done_s - seconds) * 1e9)
        if queued_ns >= done_ns:
            late_ns = max(queued_ns - begin_ns, 0)
        done_ns = int(done_s * 1e9) + late_ns
        put((begin_ns + late_ns, done_ns, places.get(kind, other)))
        return done_s

    return queue


def device_facts() -> dict[str, Any]:
    """The device's name, busy time and peak memory, if torch was imported and there is one."""
    simulated = sys.modules.get("stoker.sim.device")
    devices = simulated.live() if simulated else []
    if devices:
        busiest = max(devices, key=lambda device: device.busy_s)
        busy_ns = int(busiest.busy_s * 1e9)
        memory = {"peak_bytes": busiest.memory_peak_bytes or None, "total_bytes": busiest.memory_bytes}
        return {"name": "sim", "busy_ns": busy_ns, **memory}
    torch = sys.modules.get("torch")
    if torch is None or not torch.accelerator.is_available():
        return {}
    kind = torch.accelerator.current_accelerator().type
    if kind != "cuda":
        return {"name": kind}
    memory = {"peak_bytes": torch.cuda.max_memory_reserved(), "total_bytes": torch.cuda.mem_get_info()[1]}
    return {"name": torch.cuda.get_device_name(), **memory}


PARTS = (watch_forward, watch_backward, watch_optimizers, watch_sections, watch_collector, watch_accelerator)
