"""What a live view wants to know from inside: the device, what was compiled, and values that are no numbers.

Everything here is read, never asked for: no call waits for a device, and a value is only looked at when the script
itself has read it.
"""

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from stoker.observe.frames import Frames, users_frame
from stoker.observe.patches import Patches
from stoker.observe.recorder import Recorder, clock

ODD_S = 1.0
"""Values that are no numbers come in thousands; one in this much time is written down."""
READS = ("item", "__float__")
"""How a script reads a loss. Formatting goes through `item`."""


def pulse() -> dict[str, Any]:
    """The device and the compiler now; empty where there is neither."""
    return {**_device(), **_compiled()}


def _device() -> dict[str, Any]:
    simulated = sys.modules.get("stoker.sim.device")
    devices = simulated.live() if simulated else []
    if devices:
        busiest = max(devices, key=lambda device: device.busy_s)
        return {"device": "sim", "busy_s": busiest.busy_s, "device_bytes": busiest.memory_peak_bytes or None}
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_initialized():  # asking more would start what the script has not started
        return {}
    return {"device": cuda.get_device_name(), "device_bytes": cuda.memory_reserved()}


def _compiled() -> dict[str, Any]:
    dynamo = sys.modules.get("torch._dynamo.utils")
    counters = getattr(dynamo, "counters", None)
    if not counters or not counters.get("stats"):
        return {}
    spent = sum(dynamo.compilation_time_metrics.get("_compile.compile_inner", ()))  # type: ignore[union-attr]
    return {"graphs": int(counters["stats"].get("unique_graphs", 0)), "compile_s": float(spent)}


class Pulses:
    """Writes a pulse when it differs from the one before. Called by the recorder's own thread."""

    def __init__(self, note: Callable[..., None]) -> None:
        self._note = note
        self._last: dict[str, Any] = {}

    def beat(self) -> None:
        """Look; say what is new."""
        try:
            found = pulse()
        except Exception:  # noqa: BLE001  torch may be half imported just now
            return
        if found != self._last:
            self._last = found
            self._note("pulse", **found)


def watch_values(torch: ModuleType, recorder: Recorder, patches: Patches) -> None:
    """Notice a NaN that the script reads by itself, or an infinite loss: one comparison for each value it reads.

    An infinity is only told where the tensor has a gradient: the norm of scaled gradients is infinite now and then, by
    design of mixed precision.
    """
    for name in READS:
        patches.set(torch.Tensor, name, _reading(getattr(torch.Tensor, name), recorder))


def _reading(original: Callable[..., Any], recorder: Recorder) -> Callable[..., Any]:
    frames = Frames(lambda *_, **__: None)
    quiet_until = 0

    @functools.wraps(original)
    def read(self: Any) -> Any:
        nonlocal quiet_until
        value = original(self)
        if value.__class__ is float and value - value != 0.0 and (value != value or self.requires_grad):  # noqa: PLR0124
            now = clock()
            if now > quiet_until:
                quiet_until = now + int(ODD_S * 1e9)
                frame = users_frame(sys._getframe(1), frames)  # noqa: SLF001
                place = (frame.f_code.co_filename, frame.f_lineno) if frame else ("", 0)
                recorder.note("odd", value=str(value), file=place[0], line=place[1])
        return value

    return read
