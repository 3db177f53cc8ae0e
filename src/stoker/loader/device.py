"""Batches on the training's device: copied from pinned memory on a stream of its own, while the device computes."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from stoker.errors import UsageError


def each_tensor(batch: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """A batch of the same structure, with every tensor changed."""
    if isinstance(batch, torch.Tensor):
        return change(batch)
    if isinstance(batch, dict):
        return {key: each_tensor(value, change) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(each_tensor(value, change) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(each_tensor(value, change) for value in batch)
    return batch


@dataclass(frozen=True, slots=True)
class _OnItsWay:
    """A batch that is being copied."""

    batch: Any
    host: Any
    copied: torch.Event


class Copier:
    """Copies batches to an accelerator. `start` runs in a loader thread, `finish` in the consumer's."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.Stream(device=device)
        self._hosts: deque[_OnItsWay] = deque()

    def start(self, batch: Any) -> _OnItsWay:
        """Queue the copies."""
        with self._stream:
            moved = each_tensor(batch, lambda tensor: tensor.to(self._device, non_blocking=True))
            return _OnItsWay(moved, batch, self._stream.record_event())

    def finish(self, way: _OnItsWay) -> Any:
        """Let the device wait for the copies; the host's buffers are kept until they are done."""
        self._hosts.append(way)
        while self._hosts and self._hosts[0].copied.query():
            self._hosts.popleft()
        now = torch.accelerator.current_stream(self._device)
        now.wait_event(way.copied)
        each_tensor(way.batch, lambda tensor: tensor.record_stream(now))
        return way.batch


def copier(device: str | torch.device | None) -> Copier | None:
    """What copies to a device; None for the CPU, where batches already are."""
    try:
        if device is None or torch.device(device).type == "cpu":
            return None
        return Copier(torch.device(device))
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise UsageError(f"device is {str(device)!r}, which is not to be had here: {reason}") from error
