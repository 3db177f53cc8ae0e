"""Knobs set from outside: an unmodified script gets other loader arguments, precision or threads through the attach.

What a knob touches is met when it appears: every DataLoader when it is made, the model at its first call, an optimizer
when it is made, the process when torch is imported. A knob that cannot be set where it is wanted is noted as
refused and leaves the script as it is: a run must never fail because of a setting.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from stoker.errors import UsageError
from stoker.knobs import Scope, find
from stoker.observe.patches import Patches
from stoker.records.observed import Value

Note = Callable[..., None]

FIRST = "num_workers"
"""Applied before the others: some of them are legal only with workers."""


class Settings:
    """The knobs of one run, by what they act on."""

    def __init__(self, knobs: Mapping[str, Value], note: Note) -> None:
        self._note = note
        names = sorted(knobs, key=lambda name: name != FIRST)
        self._of: dict[Scope, list[tuple[str, Value]]] = {}
        for name in names:
            self._of.setdefault(find(name).scope, []).append((name, knobs[name]))

    def install(self, torch: ModuleType, patches: Patches) -> None:
        """Meet what the knobs act on."""
        self._apply("process", None, patches)
        if "loader" in self._of:
            self._meet_loaders(torch, patches)
        if "model" in self._of:
            self._meet_models(torch, patches)
        if "optimizer" in self._of:
            self._meet_optimizers(torch, patches)

    def _apply(self, scope: Scope, target: Any, patches: Patches | None) -> None:
        for name, value in self._of.get(scope, ()):
            knob = find(name)
            try:
                before = knob.read(target)
                undo = knob.apply(target, value)
            except UsageError as error:
                self._note("refused", knob=name, value=value, why=str(error))
                continue
            self._note("set", knob=name, value=value, before=before)
            if patches is not None:
                patches.on_restore(undo)

    def _meet_loaders(self, torch: ModuleType, patches: Patches) -> None:
        kind = torch.utils.data.DataLoader
        original = kind.__init__
        signature = inspect.signature(original)

        @functools.wraps(original)
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            try:
                bound = dict(signature.bind(self, *args, **kwargs).arguments)
            except TypeError:  # a wrong call: let torch say so
                original(self, *args, **kwargs)
                return
            bound.pop("self")
            bound.update(bound.pop("kwargs", {}))
            settings._apply("loader", bound, None)
            original(self, **bound)

        settings = self
        patches.set(kind, "__init__", __init__)

    def _meet_models(self, torch: ModuleType, patches: Patches) -> None:
        """The first module with parameters that is called with gradients on is the model."""
        original = torch.nn.Module.__call__
        met = False

        @functools.wraps(original)
        def __call__(module: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
            nonlocal met
            if not met and torch.is_grad_enabled() and any(p.requires_grad for p in module.parameters()):
                met = True
                self._apply("model", module, patches)
            return original(module, *args, **kwargs)

        patches.set(torch.nn.Module, "__call__", __call__)

    def _meet_optimizers(self, torch: ModuleType, patches: Patches) -> None:
        kind = torch.optim.Optimizer
        original = kind.__init__
        settings = self

        @functools.wraps(original)
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            original(self, *args, **kwargs)
            settings._apply("optimizer", self, None)

        patches.set(kind, "__init__", __init__)
