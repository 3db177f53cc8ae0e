"""The first losses of a run, kept on the device and read once: what a knob does to the results shows there first."""

import functools
from types import ModuleType
from typing import Any

from stoker.observe.patches import Patches
from stoker.observe.recorder import Recorder


class Losses:
    """Keeps the value of the first `count` backwards; `tell` notes them."""

    def __init__(self, recorder: Recorder, count: int) -> None:
        self._recorder = recorder
        self._count = count
        self._kept: list[Any] = []
        self._told = False

    def install(self, torch: ModuleType, patches: Patches) -> None:
        """Look at what each backward starts from."""
        original = torch.autograd.backward

        @functools.wraps(original)
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._told:
                self._keep(torch, tensors)
            return original(tensors, *args, **kwargs)

        patches.set(torch.autograd, "backward", backward)

    def _keep(self, torch: ModuleType, tensors: Any) -> None:
        loss = tensors if isinstance(tensors, torch.Tensor) else next(iter(tensors), None)
        if isinstance(loss, torch.Tensor) and loss.numel() == 1:
            self._kept.append(loss.detach().clone())
        if len(self._kept) >= self._count:
            self.tell()

    def tell(self) -> None:
        """Note what was kept; the one time that the device is waited for."""
        if self._told or not self._kept:
            return
        self._told = True
        values = [float(loss) for loss in self._kept]
        self._kept.clear()
        self._recorder.note("losses", values=[value if abs(value) < float("inf") else None for value in values])


def seed_all(seed: int, torch: ModuleType) -> None:
    """The same random numbers in every run, unless the script seeds them itself later."""
    import random
    import sys

    random.seed(seed)
    torch.manual_seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)
