"""What a simulation foretells, and what the simulated accelerator costs."""

from collections.abc import Mapping
from dataclasses import dataclass

from stoker.records.observed import Value


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A recorded run with other knobs, as simulated.

    `simulated_step_s` is the simulation of the run as it was: far from `measured_step_s`, and the rest is worth little.
    `ratio` is of rates in samples, above 1 is faster. `memory_bytes` is the peak of all processes.
    """

    knobs: Mapping[str, Value]
    measured_step_s: float
    simulated_step_s: float
    step_s: float
    ratio: float
    epoch_s: float | None
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class DeviceProfile:
    """Device seconds of real steps, recorded once, replayed on the simulated accelerator.

    One entry per step in each list, so that a replay can draw whole steps and keep their correlation.
    """

    device: str
    batch_size: int
    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    optimizer_s: tuple[float, ...]
    copy_bytes_per_s: float | None
