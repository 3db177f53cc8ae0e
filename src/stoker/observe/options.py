"""What the parent tells the child, as a small file in the run's directory."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stoker.records import Value, decode, encode

FILE = "options.json"
BUDGET_SHARE = 0.5
"""The share of the budget that experiments may take; the rest is for watching."""


@dataclass(frozen=True, slots=True)
class Options:
    """How a run is observed. `knobs` are applied through the same attach as the hooks.

    With `cycle` off the run ends in the middle of its epoch once the budget is spent: enough for the rate of steps.
    With `observe` off nothing is recorded and nothing is cut short: the run only gets its knobs.
    """

    observe: bool = True
    whole: bool = False
    steps: int | None = None
    budget_s: float = 60.0
    cycle: bool = True
    path_before: str | None = None
    probe: bool = True
    knobs: Mapping[str, Value] = field(default_factory=dict)

    def write(self, directory: Path) -> None:
        """Leave them where the child looks."""
        (directory / FILE).write_text(json.dumps(encode(self)))

    @staticmethod
    def read(directory: Path) -> "Options":
        """What the parent left."""
        return decode(Options, json.loads((directory / FILE).read_text()))
