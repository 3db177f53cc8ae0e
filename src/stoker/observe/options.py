"""What the parent tells the child, as a small file in the run's directory."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stoker.records.codec import decode, encode
from stoker.records.observed import Value

FILE = "options.json"
BUDGET_SHARE = 0.5
"""The share of the budget that experiments may take; the rest is for watching."""


@dataclass(frozen=True, slots=True)
class Options:
    """How a run is observed. `knobs` are applied through the same attach as the hooks.

    With `cycle` off the run ends in the middle of its epoch once the budget is spent: enough for the rate of steps;
    `epoch_s` then is when an epoch of training is cut, so that the start of the next is seen too.
    With `observe` off nothing is recorded and nothing is cut short: the run only gets its knobs. `losses` is how many
    of the first are kept; `seed` sets what the script does not seed itself; `files` notes every file that is opened;
    `device_profile` is a recorded device to replay.
    With `live` on the process also says each second what a live view wants to know, and looks at its lines more rarely.
    """

    observe: bool = True
    whole: bool = False
    steps: int | None = None
    budget_s: float = 60.0
    cycle: bool = True
    path_before: str | None = None
    probe: bool = True
    live: bool = False
    knobs: Mapping[str, Value] = field(default_factory=dict)
    epoch_s: float | None = None
    losses: int = 0
    seed: int | None = None
    files: bool = False
    device_profile: str | None = None

    def write(self, directory: Path) -> None:
        """Leave them where the child looks."""
        (directory / FILE).write_text(json.dumps(encode(self)))

    @staticmethod
    def read(directory: Path) -> "Options":
        """What the parent left."""
        return decode(Options, json.loads((directory / FILE).read_text()))
