"""A device that is not here, replayed from a profile: the script runs on the CPU, the model takes the device's time.

The first call with inputs of some shapes runs for real, so that outputs of the right shapes are known; later ones
return at once and queue the recorded time. Nothing is trained: this is for tuning what feeds the device.
"""

import functools
from types import ModuleType
from typing import Any

from stoker.observe.patches import Patches
from stoker.observe.recorder import Recorder, clock
from stoker.records.observed import Kind
from stoker.sim.cost import Costs, load_profile, replay, seconds
from stoker.sim.timeline import Timeline


class Replayed:
    """The recorded device of one process."""

    def __init__(self, profile: str, recorder: Recorder) -> None:
        self._costs: Costs = replay(load_profile(profile))
        self._timeline = Timeline()
        self._recorder = recorder
        self._outputs: dict[Any, Any] = {}
        self._inside = False
        self._batch = 1
        self._step_before_s = 0.0

    def facts(self) -> dict[str, Any]:
        """The device, for the record."""
        return {"name": "replayed", "busy_ns": int(self._timeline.busy_s * 1e9)}

    def install(self, torch: ModuleType, patches: Patches) -> None:
        """Stand in for the model's work."""
        from importlib import import_module

        self._torch = torch
        self._map = import_module("torch.utils._pytree").tree_map
        self._leaves = import_module("torch.utils._pytree").tree_leaves
        patches.set(torch.nn.Module, "__call__", self._called(torch.nn.Module.__call__))
        patches.set(torch.autograd, "backward", self._backward(torch.autograd.backward))
        hook = import_module("torch.optim.optimizer").register_optimizer_step_post_hook
        patches.on_restore(hook(self._stepped).remove)

    def _called(self, original: Any) -> Any:
        @functools.wraps(original)
        def __call__(module: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
            if self._inside or next(module.parameters(), None) is None:
                return original(module, *args, **kwargs)
            tensors = [leaf for leaf in self._leaves((args, kwargs)) if isinstance(leaf, self._torch.Tensor)]
            grad = self._torch.is_grad_enabled()
            key = (id(module), grad, tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors))
            self._batch = next((int(tensor.shape[0]) for tensor in tensors if tensor.dim()), 1)
            if key not in self._outputs:
                self._inside = True
                try:
                    output = original(module, *args, **kwargs)
                finally:
                    self._inside = False
                self._outputs[key] = self._map(self._model_of, output)
            self._timeline.queue("forward", seconds(self._costs["forward"], self._batch))
            if not grad:
                self._wait(self._timeline.free_at_s)
            return self._map(lambda leaf: leaf() if callable(leaf) else leaf, self._outputs[key])

        return __call__

    def _model_of(self, leaf: Any) -> Any:
        """What makes a fresh tensor like this one, which a backward can start from and ends at."""
        if not isinstance(leaf, self._torch.Tensor):
            return leaf
        kept, needs = leaf.detach().clone(), leaf.requires_grad
        return lambda: kept.detach().clone().requires_grad_(needs)

    def _backward(self, original: Any) -> Any:
        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            self._timeline.queue("backward", seconds(self._costs["backward"], self._batch))
            return original(*args, **kwargs)

        return backward

    def _stepped(self, *_: Any) -> None:
        """The host runs at most one step ahead of the device."""
        done_s = self._timeline.queue("optimizer", seconds(self._costs["optimizer"], self._batch))
        before_s, self._step_before_s = self._step_before_s, done_s
        self._wait(before_s)

    def _wait(self, until_s: float) -> None:
        start = clock()
        self._timeline.wait(until_s)
        self._recorder.span(Kind.SYNC, start, clock())
