"""One process of the user's command with some knobs, guarded, observed until its steps are steady: seconds a sample."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from stoker.attribute import attribute
from stoker.errors import UsageError
from stoker.knobs import find
from stoker.observe.launch import prepare
from stoker.observe.meters import Meters
from stoker.observe.options import Options
from stoker.observe.pace import ENOUGH, TRIAL_STEPS
from stoker.observe.readback import read
from stoker.observe.restore import restore
from stoker.predict import epoch_parts
from stoker.predict.pipeline import Pipeline
from stoker.predict.whatif import measured
from stoker.records.attributed import Attribution
from stoker.records.codec import encode
from stoker.records.observed import LoaderFacts, Observation, Value
from stoker.records.tuning import Limits, Outcome
from stoker.trial import guard
from stoker.trial.command import Command
from stoker.trial.epochs import FEWEST_STEPS, StepTimes, step_times
from stoker.trial.protocol import Usage

LOSSES = 20
"""Of the first steps, kept to see whether a knob changes what is trained."""
MOST_BATCHES = 400
"""Kept of those that were measured: enough for a distribution, small enough for a journal."""
OUT_OF_MEMORY = ("OutOfMemoryError", "out of memory", "MemoryError", "DefaultCPUAllocator: can't allocate")
TAIL_BYTES, WORDS_LETTERS = 20_000, 200


@dataclass(frozen=True, slots=True)
class Manner:
    """How every process of a tuning is run, reference and candidates alike.

    `steady_s` is how long one is watched once it trains; `epoch_s` when an epoch is cut, so that the next one's start
    is seen too; `files` asks for the names of the files that are read.
    """

    steady_s: float
    epoch_s: float | None = None
    files: bool = False
    device_profile: str | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """One process. `step_s` is an epoch's seconds a step, its first batch spread over it; None if not reached.

    It is that of later epochs, if some were seen (`is_later`); `first_step_s` is the first one's.
    `before` holds what each knob was before it was set; `refused` says why knobs could not be set; `memory_failed` that
    the script itself ended because memory was short. `first_batch_s` and `epochs` are of training.
    """

    outcome: Outcome
    step_s: float | None
    steps: int
    batch_size: int | None
    loader: LoaderFacts | None
    pipeline: Pipeline | None
    before: Mapping[str, Value]
    refused: tuple[str, ...]
    losses: tuple[float | None, ...] = ()
    memory_failed: bool = False
    device_peak_bytes: int | None = None
    device_total_bytes: int | None = None
    epochs: int = 0
    first_batch_s: float | None = None
    device: str | None = None
    ended_itself: bool = False  # it was over before it had been watched for as long as wanted
    wait_share: float | None = None  # of steady steps, waiting for data
    first_step_s: float | None = None
    is_later: bool = False

    @property
    def is_short(self) -> bool:
        """True if the script itself makes so few steps that its rate is mostly that of a start."""
        return self.ended_itself and self.steps < TRIAL_STEPS

    @property
    def sample_s(self) -> float | None:
        """Seconds a sample, so that batches of different sizes can be compared; a step's, where none is known."""
        return None if self.step_s is None else self.step_s / (self.batch_size or 1)

    def step_beside(self, other: "Sample") -> float | None:
        """Seconds a step in an epoch like the other's: a later one if both have seen some, else the first."""
        return self.step_s if self.is_later == other.is_later else self.first_step_s or self.step_s

    def sample_beside(self, other: "Sample") -> float | None:
        """The same for a sample."""
        step_s = self.step_beside(other)
        return None if step_s is None else step_s / (self.batch_size or 1)


def measure(
    command: Command,
    knobs: Mapping[str, Value],
    directory: Path,
    limits: Limits,
    manner: Manner,
    progress: Callable[[Usage], None] | None = None,
) -> Sample:
    """Run the command with these knobs, for about `steady_s` seconds of training, its output kept in `directory`."""
    directory.mkdir(parents=True)
    place = directory.resolve()
    ready = command.with_knobs(knobs, place)
    options = Options(
        budget_s=manner.steady_s,
        cycle=False,
        probe=False,
        knobs=dict(ready.attached),
        epoch_s=manner.epoch_s,
        losses=LOSSES,
        seed=0,
        files=manner.files,
        device_profile=manner.device_profile,
    )
    environment = prepare(ready.words, place, options)
    with (directory / "output.txt").open("wb") as output:
        try:
            outcome = guard.run(
                ready.words, limits, environment=environment, stdout=output, stderr=output, progress=progress
            )
        finally:
            restore(place)
    return _sample(place, outcome, ready.attached)


def examine(
    command: Command,
    knobs: Mapping[str, Value],
    directory: Path,
    limits: Limits,
    *,
    budget_s: float,
    manner: Manner,
    progress: Callable[[Usage], None] | None = None,
) -> Outcome:
    """One run with the doctor's experiments in it, guarded like a trial; its records are left in `directory`."""
    directory.mkdir(parents=True)
    place = directory.resolve()
    ready = command.with_knobs(knobs, place)
    options = Options(
        budget_s=budget_s, knobs=dict(ready.attached), files=manner.files, device_profile=manner.device_profile
    )
    environment = prepare(ready.words, place, options)
    with (directory / "output.txt").open("wb") as output, (directory / "meters.jsonl").open("w") as meters:
        try:
            outcome = guard.run(
                ready.words,
                limits,
                environment=environment,
                stdout=output,
                stderr=output,
                progress=_Metering(meters, progress).tick,
            )
        finally:
            restore(place)
    end = {"end_ns": time.perf_counter_ns(), "code": outcome.exit_code, "interrupted": outcome.ending == "interrupted"}
    (place / "end.json").write_text(json.dumps(end))
    return outcome


def opened_files(directory: Path) -> Iterator[Path]:
    """The files that a run noted as read."""
    for note in _notes(directory):
        if note.get("note") == "opened":
            yield Path(note["path"])


class _Metering:
    """Reads the machine's meters whenever the guard says how it goes."""

    def __init__(self, file: Any, then: Callable[[Usage], None] | None) -> None:
        self._file = file
        self._then = then
        self._meters: Meters | None = None

    def tick(self, usage: Usage) -> None:
        if self._meters is None:
            guards = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
            if guards:
                self._meters = Meters(guards[-1].pid)
        meter = self._meters.read() if self._meters else None
        if meter is not None:
            self._file.write(json.dumps(encode(meter)) + "\n")
            self._file.flush()
        if self._then is not None:
            self._then(usage)


def _sample(place: Path, outcome: Outcome, attached: Mapping[str, Value]) -> Sample:
    seen = read(place)
    track = seen.tracks[0]
    named = attribute(track)
    loader = next((wait.facts for wait in named.loaders if wait.role == "train"), None)
    before, refused = _settings(place)
    finished = outcome.ending == "finished"
    if outcome.ending == "failed":
        outcome = replace(outcome, reason=outcome.reason + _last_words(place / "output.txt"))
    train = [one for one in named.passes if one.is_train and one.batches]
    parts = epoch_parts(named)
    pipeline = _pipeline(seen, named, outcome.host_peak_bytes)
    is_enough = finished and len(named.steps) >= FEWEST_STEPS
    if is_enough and not refused:
        refused = tuple(_unmet(name) for name in attached if name not in before)
    found = step_times(seen, named, pipeline.device_s if pipeline else 0.0) if is_enough else StepTimes(None)
    return Sample(
        outcome=outcome,
        step_s=found.first_s if found.later_s is None else found.later_s,
        steps=len(named.steps),
        batch_size=loader.batch_size if loader else None,
        loader=loader,
        pipeline=pipeline,
        before=before,
        refused=refused,
        losses=track.losses,
        memory_failed=outcome.ending == "failed" and _ran_out(place / "output.txt"),
        device_peak_bytes=track.device_peak_bytes or outcome.device_peak_bytes,
        device_total_bytes=track.device_total_bytes,
        epochs=len(train),
        first_batch_s=parts.first_batch_s if parts else None,
        device=track.device,
        ended_itself=finished and not (place / ENOUGH).exists(),
        wait_share=_wait_share(named),
        first_step_s=found.first_s,
        is_later=found.later_s is not None,
    )


def _unmet(name: str) -> str:
    """Why a knob was neither set nor refused."""
    return f"{name} was set nowhere: the script made no {find(name).scope} that takes it"


def _wait_share(named: Attribution) -> float | None:
    steps = [named.steps[i] for i in named.steady.steps] if named.steady else []
    seconds = sum(step.seconds for step in steps)
    return sum(step.parts.get("data_wait", 0.0) for step in steps) / seconds if seconds else None


def _tail(output: Path) -> str:
    return output.read_bytes()[-TAIL_BYTES:].decode(errors="replace")


def _ran_out(output: Path) -> bool:
    return any(word in _tail(output) for word in OUT_OF_MEMORY)


def _last_words(output: Path) -> str:
    """The last line that a command wrote, as code in brackets, so that it means nothing where it is shown."""
    words = "".join(
        one if one.isprintable() and one not in "`[]|" else " " for one in _tail(output).rstrip().rpartition("\n")[2]
    )
    return f" (`{words.strip()[:WORDS_LETTERS]}`)" if words.strip() else ""


def _pipeline(seen: Observation, named: Attribution, peak_bytes: int | None) -> Pipeline | None:
    """What predictions start from; None where too little was seen."""
    try:
        found = measured(seen, named, peak_bytes)
    except UsageError:
        return None
    every = max(len(found.work_s) // MOST_BATCHES, 1)
    return found.thinned(every)


def _notes(directory: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(directory.glob("*.notes")):
        for line in path.read_text().splitlines():
            if line.endswith("}"):
                yield json.loads(line)


def _settings(directory: Path) -> tuple[dict[str, Value], tuple[str, ...]]:
    """What the child noted about its knobs: the values they had, and those that could be set nowhere."""
    before: dict[str, Value] = {}
    refused: dict[str, str] = {}
    for note in _notes(directory):
        if note.get("note") == "set":
            before.setdefault(note["knob"], note["before"])
        elif note.get("note") == "refused":
            refused[note["knob"]] = note["why"]
    return before, tuple(why for knob, why in refused.items() if knob not in before)
