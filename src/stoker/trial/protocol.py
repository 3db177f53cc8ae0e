"""What the guard and its supervising process say to each other: one JSON line each way at a time."""

from collections.abc import Mapping
from dataclasses import dataclass

from stoker.records.tuning import Limits, Outcome

NAME_VARIABLE = "STOKER_TRIAL"
"""Every process of a trial has this in its environment; its value is the trial's name."""

END = b"e"
"""To the supervisor: end the tree, kindly first."""
KILL = b"k"
"""To the supervisor: end the tree now."""


@dataclass(frozen=True, slots=True)
class Job:
    """One command to run and guard. In `environment`, `None` takes a variable away."""

    name: str
    command: tuple[str, ...]
    cwd: str | None
    environment: Mapping[str, str | None]
    limits: Limits
    grace_s: float
    use_cgroup: bool
    parent: int


@dataclass(frozen=True, slots=True)
class Usage:
    """What the tree holds now."""

    seconds: float
    host_bytes: int
    shm_bytes: int | None
    device_bytes: int | None
    processes: int


@dataclass(frozen=True, slots=True)
class Report:
    """From the supervisor: how it goes, or, last, how it went."""

    usage: Usage | None = None
    outcome: Outcome | None = None
