"""What a piece of device work costs: a number of seconds, a function of the batch size, or a recorded profile."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import TypedDict

from stoker.errors import UsageError
from stoker.records.codec import decode
from stoker.records.predicted import DeviceProfile

Cost = float | Callable[[int], float]


class Costs(TypedDict):
    """The part of `Device`'s arguments that a profile fills."""

    forward: Cost
    backward: Cost
    optimizer: Cost
    copy_bytes_per_s: float


def seconds(cost: Cost, batch_size: int) -> float:
    """What this cost comes to for one batch."""
    return cost(batch_size) if callable(cost) else cost


def linear(fixed_s: float, per_sample_s: float) -> Cost:
    """A cost that grows with the batch."""
    return lambda batch_size: fixed_s + per_sample_s * batch_size


def load_profile(path: str | Path) -> DeviceProfile:
    """A profile that was recorded on a real device and written as JSON."""
    try:
        return decode(DeviceProfile, json.loads(Path(path).read_text()))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} is no device profile: {error}") from error


def replay(profile: DeviceProfile, seed: int = 0) -> Costs:
    """Costs drawn from a recorded profile: `Device(**replay(profile))`.

    Each forward draws a whole recorded step, and backward and optimizer follow from the same one, so that slow
    steps stay slow in all their parts. Another batch size than the recorded one scales the times in proportion.
    """
    steps = list(zip(profile.forward_s, profile.backward_s, profile.optimizer_s, strict=True))
    if not steps:
        raise UsageError(f"the profile of {profile.device} holds no steps; record at least one")
    draw = random.Random(seed)  # noqa: S311  a simulation, not a secret
    drawn = steps[0]

    def forward(batch_size: int) -> float:
        nonlocal drawn
        drawn = draw.choice(steps)
        return drawn[0] * batch_size / profile.batch_size

    return Costs(
        forward=forward,
        backward=lambda batch_size: drawn[1] * batch_size / profile.batch_size,
        optimizer=lambda _: drawn[2],
        copy_bytes_per_s=profile.copy_bytes_per_s or PCIE_BYTES_PER_S,
    )


# What a pinned copy reaches over PCIe 3.0 x16 in practice.
PCIE_BYTES_PER_S = 12e9
