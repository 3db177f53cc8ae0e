"""One process of the user's command with some knobs, guarded, observed until its steps are steady: seconds a sample."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, harmonic_mean
from typing import Any

import psutil

from stoker.attribute import attribute
from stoker.attribute.batches import passes_of, train_workers
from stoker.errors import UsageError
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
from stoker.trial.protocol import Usage

FEWEST_STEPS = 4
"""Fewer steps than this say nothing about a rate; where steps are fast, a run is watched for many more."""
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
    """One process. `step_s` is the whole epoch's seconds a step, its first batch spread over it; None if not reached.

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

    @property
    def is_short(self) -> bool:
        """True if the script itself makes so few steps that its rate is mostly that of a start."""
        return self.ended_itself and self.steps < TRIAL_STEPS

    @property
    def sample_s(self) -> float | None:
        """Seconds a sample, so that batches of different sizes can be compared; a step's, where none is known."""
        return None if self.step_s is None else self.step_s / (self.batch_size or 1)


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
    return _sample(place, outcome)


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


def _sample(place: Path, outcome: Outcome) -> Sample:
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
    device_s = pipeline.device_s if pipeline else None
    return Sample(
        outcome=outcome,
        step_s=_step_s(seen, named, device_s or 0.0) if finished and len(named.steps) >= FEWEST_STEPS else None,
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
    )


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


def _step_s(seen: Observation, named: Attribution, device_s: float) -> float | None:
    """Seconds a step over a whole epoch: its first batch, its head and its steady steps.

    A loop that waits for its device only now and then queues steps faster than they are done: they take at least what
    the device was busy with one. Nor can an epoch be over before its batches are made, however many lay ready for the
    steps that were seen.
    """
    parts = epoch_parts(named)
    if parts is None:
        return max(named.steady.mean_step_s, device_s) if named.steady else None
    length = next(one.length for one in named.passes if one.is_train and one.length)
    after_s = max(parts.head_s + parts.steady_s, _making_s(seen, named, length))
    return parts.first_batch_s / length + max(after_s / length, device_s)


def _making_s(seen: Observation, named: Attribution, length: int) -> float:
    """What workers need for an epoch after its first batch has come, on average over the epochs; 0 without workers."""
    makers = [one for one in train_workers(seen, seen.tracks[0], named) if one.worker is not None]
    found = []
    for one, _ in passes_of(named):
        came_ns = one.start_ns + round(one.first_batch_s * 1e9)
        made = [
            [(batch.begin_ns, batch.end_ns) for batch in maker.batches if one.start_ns < batch.end_ns <= one.end_ns]
            for maker in makers
        ]
        found.append(making_s([own for own in made if own], came_ns, length))
    known = [seconds for seconds in found if seconds is not None]
    return fmean(known) if known else 0.0


def making_s(made: Sequence[Sequence[tuple[int, int]]], came_ns: int, length: int) -> float | None:
    """Seconds from the first batch on until all of an epoch's are made, from begin and end of each worker's first ones.

    Those that were seen took what they took, the others are made as fast as each worker made its later ones. How many
    were made in the time that was watched says less: slow workers all deliver at once and then none does for a while,
    and watching ends anywhere in that. None where no worker made two.
    """
    paces = [fmean(end - begin for begin, end in own[1:]) / 1e9 for own in made if len(own) > 1]
    if not paces or min(paces) <= 0:
        return None
    left = max(length - sum(map(len, made)), 0)
    return max(max(own[-1][1] for own in made) - came_ns, 0) / 1e9 + left * harmonic_mean(paces) / len(made)


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
