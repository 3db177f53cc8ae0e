"""Two runs side by side."""

from dataclasses import dataclass
from typing import Literal

from stoker.records.observed import Value
from stoker.records.tuning import Interval


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that was set, or was there, in one run and not in the other."""

    name: str
    a: Value
    b: Value


@dataclass(frozen=True, slots=True)
class Contrast:
    """One figure of both runs."""

    name: str
    a: float | None
    b: float | None
    unit: str


Outcomes = Literal["faster", "slower", "alike", "undecided"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Run B against run A. `speed` is the ratio of their rates in samples, above 1 if B is faster.

    One run each cannot tell what another process, hour or neighbour on the machine would have changed; a difference has
    to be larger than that.
    """

    a: str
    b: str
    outcome: Outcomes
    reason: str
    speed: Interval | None
    settings: tuple[Difference, ...]
    figures: tuple[Contrast, ...]
    phases: tuple[Contrast, ...]  # seconds of a mean steady step
