"""Copies of a batch (a loop may change what it was given: every step gets its own), and how much of one is padding."""

import copy
import functools
import io
from collections.abc import Callable, Mapping
from typing import Any

from stoker.observe.probe_ahead import MOST_BYTES, MOST_SHARE, free_bytes, weight


def copies(batches: list[Any], wanted: int) -> list[Any]:
    """Up to `wanted` copies, in turns; fewer if memory is short, none if a batch cannot be copied."""
    size = max([weight(batch)[0] for batch in batches], default=0)
    room = min(MOST_BYTES, MOST_SHARE * free_bytes())
    count = min(wanted, int(room // size)) if size else wanted
    made: list[Any] = []
    try:
        made.extend(copy.deepcopy(batches[i % len(batches)]) for i in range(count))
    except Exception:  # noqa: BLE001  what cannot be copied cannot be replayed
        return []
    return made


class Own:
    """What a data set counts and draws by itself, to be put back after it was read for a look."""

    def __init__(self, dataset: Any) -> None:
        self._held: dict[str, Any] = getattr(dataset, "__dict__", {})
        self._counts = {name: value for name, value in self._held.items() if isinstance(value, (int, float))}
        self._back = [back for value in self._held.values() if (back := _putting_back(value)) is not None]

    def restore(self) -> None:
        """As it was; what else the data set has made of itself, such as files it opened, it keeps."""
        self._held.update(self._counts)
        for back in self._back:
            back()


def _putting_back(value: Any) -> Callable[[], object] | None:
    """What puts a file, or a generator of random numbers, back to where it stands; None for all other things."""
    if isinstance(value, io.IOBase):
        return functools.partial(value.seek, value.tell()) if not value.closed and value.seekable() else None
    if type(value).__module__.partition(".")[0] not in {"random", "numpy", "torch"}:
        return None
    if hasattr(value, "bit_generator"):
        return functools.partial(setattr, value.bit_generator, "state", value.bit_generator.state)
    for get, put in (("getstate", "setstate"), ("get_state", "set_state")):
        if hasattr(value, get) and hasattr(value, put):
            return functools.partial(getattr(value, put), getattr(value, get)())
    return None


def padding_share(batches: list[Any]) -> float | None:
    """The share of elements that only fill up: behind each sample's own end, where samples end at different places.

    Counted on the tensor of a batch with the most padding among those that are sequences: dense up to an end that
    differs from sample to sample, then one value only. A one-hot row or a dark picture is not dense.
    """
    shares = [share for batch in batches if (share := _padding(batch)) is not None]
    return sum(shares) / len(shares) if shares else None


DENSE = 0.8
"""Share of real elements before the end that must differ from what fills up."""
MOST = 0.5
"""Share of the samples that must hold something else."""
VARIED = 0.05
"""Deviation of the samples' ends that makes them sequences of different lengths, as a share of the whole."""
SAMPLED = 64


def _padding(batch: Any) -> float | None:
    found = [share for tensor in _tensors(batch) if (share := _tail_share(tensor)) is not None]
    return max(found, default=None)


def _tensors(batch: Any) -> list[Any]:
    left: list[Any] = [batch]
    found: list[Any] = []
    while left and len(found) < SAMPLED:
        part = left.pop()
        if isinstance(part, Mapping):
            left.extend(part.values())
        elif isinstance(part, (list, tuple)):
            left.extend(part)
        elif hasattr(part, "detach") and part.dim() >= 2 and part.is_cpu and not part.is_sparse:  # noqa: PLR2004
            found.append(part.detach())
    return found


def _tail_share(tensor: Any) -> float | None:
    import torch

    rows = tensor[:SAMPLED]
    if rows.is_nested or rows.shape[1] < 4 or rows.shape[0] < 2:  # noqa: PLR2004
        return None
    flat = rows.flatten(2) if rows.dim() > 2 else rows[..., None]  # noqa: PLR2004
    fill = flat[:, -1, :].flatten().mode().values
    filled = (flat == fill).all(dim=2)  # positions that hold nothing but the filling value
    length = filled.shape[1]
    ends = length - filled.flip(1).long().cumprod(dim=1).sum(dim=1)
    begun = ends > 0  # a sample of nothing but that value says nothing: it may be what it is
    if float(begun.float().mean()) < MOST:
        return None
    filled, ends = filled[begun], ends[begun]
    if float(ends.float().std()) < VARIED * length:
        return None
    inside = torch.arange(length)[None, :] < ends[:, None]
    dense = 1 - float((filled & inside).sum()) / max(float(inside.sum()), 1.0)
    return 1 - float(ends.float().mean()) / length if dense >= DENSE else None
