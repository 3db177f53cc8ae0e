"""One process of the user's command with some knobs, guarded, observed until its steps are steady: seconds a sample."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stoker.attribute import attribute
from stoker.errors import UsageError
from stoker.observe.launch import prepare
from stoker.observe.options import Options
from stoker.observe.originals import restore
from stoker.observe.readback import read
from stoker.predict import epoch_parts
from stoker.predict.pipeline import Pipeline
from stoker.predict.whatif import measured
from stoker.records import Attribution, Limits, LoaderFacts, Observation, Outcome, Value
from stoker.trial import guard

FEWEST_STEPS = 8
"""Fewer steps than this say nothing about a rate."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One process. `step_s` is the whole epoch's seconds a step, its first batch spread over it; None if not reached.

    `before` holds what each knob was before it was set; `refused` says why knobs could not be set.
    """

    outcome: Outcome
    step_s: float | None
    steps: int
    batch_size: int | None
    loader: LoaderFacts | None
    pipeline: Pipeline | None
    before: Mapping[str, Value]
    refused: tuple[str, ...]

    @property
    def sample_s(self) -> float | None:
        """Seconds a sample, so that batches of different sizes can be compared; a step's, where none is known."""
        return None if self.step_s is None else self.step_s / (self.batch_size or 1)


def measure(
    command: Sequence[str], knobs: Mapping[str, Value], directory: Path, limits: Limits, *, steady_s: float
) -> Sample:
    """Run the command with these knobs, for about `steady_s` seconds of training, its output kept in `directory`."""
    options = Options(budget_s=steady_s, cycle=False, probe=False, knobs=dict(knobs))
    directory.mkdir(parents=True)
    place = directory.resolve()
    environment = prepare(command, place, options)
    with (directory / "output.txt").open("wb") as output:
        try:
            outcome = guard.run(command, limits, environment=environment, stdout=output, stderr=output)
        finally:
            restore(place)
    seen = read(place)
    track = seen.tracks[0]
    named = attribute(track)
    loader = next((wait.facts for wait in named.loaders if wait.role == "train"), None)
    before, refused = _settings(place)
    finished = outcome.ending == "finished"
    return Sample(
        outcome=outcome,
        step_s=_step_s(named) if finished and len(named.steps) >= FEWEST_STEPS else None,
        steps=len(named.steps),
        batch_size=loader.batch_size if loader else None,
        loader=loader,
        pipeline=_pipeline(seen, named),
        before=before,
        refused=refused,
    )


def _pipeline(seen: Observation, named: Attribution) -> Pipeline | None:
    """What predictions start from; None where too little was seen."""
    try:
        return measured(seen, named)
    except UsageError:
        return None


def _step_s(named: Attribution) -> float | None:
    """Seconds a step over a whole epoch: its first batch, its head and its steady steps."""
    parts = epoch_parts(named)
    if parts is None:
        return named.steady.mean_step_s if named.steady else None
    length = next(one.length for one in named.passes if one.is_train and one.length)
    return (parts.first_batch_s + parts.head_s + parts.steady_s) / length


def _settings(directory: Path) -> tuple[dict[str, Value], tuple[str, ...]]:
    """What the child noted about its knobs: the values they had, and those that could not be set."""
    before: dict[str, Value] = {}
    refused: dict[str, None] = {}
    for path in sorted(directory.glob("*.notes")):
        for line in path.read_text().splitlines():
            note = json.loads(line) if line.endswith("}") else {}
            if note.get("note") == "set":
                before.setdefault(note["knob"], note["before"])
            elif note.get("note") == "refused":
                refused[note["why"]] = None
    return before, tuple(refused)
