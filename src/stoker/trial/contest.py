"""Candidates against a reference: rounds of fresh processes in random order, until all are judged or time is up.

Which candidates, and when a candidate is judged, is told from outside.
"""

import random
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

from stoker.errors import ScriptFailedError, StokerError, TooFewStepsError, UnsafeError, UsageError
from stoker.observe.restore import JOURNAL, KEPT, recover
from stoker.predict.whatif import simulated
from stoker.records.observed import Value
from stoker.records.tuning import Decision, Judgement, Limits, Outcome, Round
from stoker.trial import cold
from stoker.trial.command import Command, plain
from stoker.trial.journal import Entry, Journal
from stoker.trial.limits import choose, refusal
from stoker.trial.measure import Manner, Sample, examine, measure, opened_files
from stoker.trial.protocol import Usage

PATIENCE = 6.0
"""A candidate that takes this many times the reference's time is ended."""
LINE = 2
"""Sizes that a line needs."""
HEADROOM = 0.9
"""The share of its limit that another batch size may be predicted to fill: later batches can be larger."""

SEVERAL = 2
"""Workers, from which on a stream may be read more than once."""

OVER_LIMIT = ("ram", "shm", "device", "processes")
"""How a process ends that takes more than it may."""

Judge = Callable[[Sequence[Round], Sequence[Round], bool], Judgement | None]
"""Rounds of the candidate, of the reference against itself, and whether more can be had → what they say, if asked."""


@dataclass(slots=True)
class Candidate:
    """Knobs to try together, and what came of them. `base` is what both sides had besides."""

    knobs: Mapping[str, Value]
    hypothesis: str
    cause: str | None = None
    gain_max: float | None = None
    base: Mapping[str, Value] = field(default_factory=dict)
    rounds: list[Round] = field(default_factory=list)
    judgement: Judgement | None = None
    failure: tuple[Decision, str] | None = None
    samples: list[Sample] = field(default_factory=list)
    references: list[Sample] = field(default_factory=list)
    predicted_ratio: float | None = None
    seconds: float = 0.0
    expects: Mapping[str, Value] = field(default_factory=dict)
    """What the loader must have, because a key of the config file was taken for the knob that sets it."""
    is_unheard: bool = False
    """It has not: the key is another setting's."""

    @property
    def is_open(self) -> bool:
        """True while more rounds are wanted."""
        return self.failure is None and (self.judgement is None or self.judgement.decision is None)

    @property
    def verdict(self) -> tuple[Decision, str]:
        """The decision and why."""
        if self.failure is not None:
            return self.failure
        if self.judgement is None or self.judgement.decision is None:
            return "undecided", "the budget was spent before it was decided"
        return self.judgement.decision, self.judgement.reason

    @property
    def is_kept(self) -> bool:
        """True if it was proven to be faster."""
        return self.verdict[0] == "keep"

    @property
    def repeats(self) -> bool:
        """True if each of several workers brings all of a stream, unless it takes its part by itself."""
        before, after = (_streaming(samples) for samples in (self.references, self.samples))
        return before < SEVERAL <= after

    @property
    def ratio(self) -> float:
        """As measured; 1 if it was not."""
        return self.judgement.interval.ratio if self.judgement else 1.0


class Listener:
    """Hears how a contest goes; this one says nothing."""

    def starting(self, knobs: Mapping[str, Value], number: int) -> None:
        """A process is about to start."""

    def running(self, usage: Usage) -> None:
        """About twice a second while it runs."""

    def judged(self, one: Candidate) -> None:
        """A round of a candidate is over."""


class Contest:
    """Measures candidates against a reference, within a budget of time and of memory."""

    def __init__(
        self,
        command: Command,
        directory: Path,
        manner: Manner,
        *,
        budget_s: float,
        max_ram_bytes: int | None,
        judge: Judge,
        listener: Listener | None = None,
        start: Mapping[str, Value] | None = None,
    ) -> None:
        self.command = command
        self.manner = manner
        self.start = dict(start or {})
        """What the reference itself needs, because the command has places for it."""
        self.base: dict[str, Value] = {}
        self.references: list[Sample] = []
        self.own_references: list[Sample] = []
        """Of the user's own configuration, with nothing kept yet."""
        self.own_potential: float | None = None
        """How many times as fast the user's own loop is on batches that are there already, where that was measured."""
        self.gained = 1.0
        """By what was kept so far."""
        self.process_s = 0.0
        self.spent_s = 0.0
        self.processes = 0
        self._budget_s = budget_s
        self._judge_now = judge
        self._listener = listener or Listener()
        self._directory = directory
        self._journal = Journal(directory)
        self._max_ram_bytes = max_ram_bytes
        self._took: list[float] = []
        self._against_itself: list[Round] = []
        self._draw = random.Random(0)  # noqa: S311  an order, not a secret
        self._cold: list[Path] | None = None
        self._peaks: dict[int, tuple[int, int]] = {}
        """Of host and device, by the batch size that was measured."""
        self._steps: dict[int, list[float]] = {}

    @property
    def left_s(self) -> float:
        """What is left of the budget: all that was measured is taken off, also what an earlier tuner measured."""
        return self._budget_s - self.spent_s

    @property
    def potential(self) -> float | None:
        """What the model itself allows, as a multiple of the present rate."""
        return None if self.own_potential is None else self.own_potential / self.gained

    @property
    def is_replaying(self) -> bool:
        """True while an interrupted tuning is being told what it measured before."""
        return self._journal.is_replaying

    def limits(self) -> Limits:
        """What one trial may take now."""
        seconds = PATIENCE * self.process_s if self.process_s else max(self.left_s, 1.0)
        return choose(self._max_ram_bytes, seconds=seconds)

    def examine(self, budget_s: float) -> Path:
        """One run of the reference with the doctor's experiments; where its records are."""
        place = self._directory / "doctor"
        if (place / "seconds").exists():  # of the tuning that is gone on with
            self.spent_s += float((place / "seconds").read_text())
            return place
        _clear(place)
        began = time.monotonic()
        self._listener.starting({}, 0)
        limits = choose(self._max_ram_bytes, seconds=max(self.left_s, 1.0))
        examine(
            self.command,
            self.start,
            place,
            limits,
            budget_s=budget_s,
            manner=self.manner,
            progress=self._listener.running,
        )
        (place / "seconds").write_text(str(time.monotonic() - began))
        self.spent_s += time.monotonic() - began
        return place

    def run(self, knobs: Mapping[str, Value]) -> Sample:
        """One process; one that was measured before is told again."""
        wanted = {**self.start, **self.base, **knobs}
        self.processes += 1
        entry = self._journal.next(wanted)
        if entry is None or entry.sample is None:
            entry = self._measure(wanted, knobs)
            if knobs or _is_measured(entry):  # a reference that failed is tried again by who goes on
                self._journal.add(entry)
        self.spent_s += entry.seconds
        assert entry.sample is not None
        self._remember_size(entry.sample)
        return entry.sample

    def _remember_size(self, sample: Sample) -> None:
        host, device = sample.outcome.host_peak_bytes, sample.device_peak_bytes
        if sample.batch_size and sample.step_s is not None and host is not None:
            self._steps.setdefault(sample.batch_size, []).append(sample.step_s)
            before = self._peaks.get(sample.batch_size, (0, 0))
            self._peaks[sample.batch_size] = (max(before[0], host), max(before[1], device or 0))

    def _measure(self, wanted: Mapping[str, Value], knobs: Mapping[str, Value]) -> Entry:
        place = self._directory / f"{self.processes:03}"
        _clear(place)
        if self.manner.files:
            self._cool()
        self._listener.starting({**self.base, **knobs}, self.processes)
        began = time.monotonic()
        sample = measure(self.command, wanted, place, self.limits(), self.manner, self._listener.running)
        return Entry(place.name, dict(wanted), time.monotonic() - began, sample)

    def _cool(self) -> None:
        """Drop what the runs read; the first one is asked what that is."""
        if self._cold is None and self.references:
            seen = set(opened_files(self._directory / "001"))
            self._cold = sorted(seen | set(cold.named_files(self.command.words)))
        cold.drop(self._cold if self._cold is not None else cold.named_files(self.command.words))

    def refer(self) -> Sample:
        """One process of the reference; if it fails, so does the tuning, because nothing can be compared with it."""
        sample = self.run({})
        if sample.step_s is None and self.own_references:  # it has run before: what ended it may have been a neighbour
            sample = self.run({})
        if sample.step_s is None:
            output = self._directory / f"{self.processes:03}" / "output.txt"
            raise no_reference(sample.outcome, sample.steps, output, runs_before=len(self.own_references))
        if self.references:
            self._against_itself.append(_side_by_side(self.references[-1], sample))
        self.references.append(sample)
        if not self.base:
            self.own_references.append(sample)
        self._took.append(sample.outcome.seconds)
        self.process_s = median(self._took)
        return sample

    def against_itself(self) -> list[Round]:
        """Every process of a reference against the one before of the same."""
        return list(self._against_itself)

    def rebase(self, kept: Candidate | None) -> None:
        """Let kept knobs be part of the reference, which was measured as a candidate; None is the user's own."""
        self.base = {} if kept is None else {**self.base, **kept.knobs}
        self.references = [self.own_references[-1]] if kept is None else [kept.samples[-1]]
        self.gained = 1.0 if kept is None else self.gained * kept.ratio

    def decide(self, candidates: Sequence[Candidate]) -> None:
        """Rounds of the reference and all open candidates, in random order, until none is open."""
        for one in candidates:
            one.base = dict(self.base)
        while opened := [one for one in candidates if one.is_open]:
            if self.left_s < self.process_s * len(opened):  # a round may end one process late
                for one in opened:
                    self._judge(one, last=True)
                return
            self._round(opened)

    def _round(self, opened: Sequence[Candidate]) -> None:
        order: list[Candidate | None] = [None, *opened]
        self._draw.shuffle(order)
        reference: Sample | None = None
        for one in order:
            if one is None:
                reference = self.refer()
            else:
                self._try(one)
        assert reference is not None
        for one in opened:
            one.references.append(reference)
            if one.failure is None:
                one.rounds.append(_side_by_side(reference, one.samples[-1]))
                self._judge(one, last=False)
            self._listener.judged(one)

    def _try(self, one: Candidate) -> None:
        if self.references and not one.samples:  # what is predicted afterwards is no prediction
            unsafe = self._refusal(one, self._predict(one, self.references[-1]))
            if unsafe is not None:
                one.failure = ("unsafe", unsafe)
                return
        before_s = self.spent_s
        sample = self.run(one.knobs)
        one.seconds += self.spent_s - before_s
        one.samples.append(sample)
        one.failure = _failure(sample, self.references[-1] if self.references else None)
        if one.failure is None and (unheard := _unheard(one, sample)) is not None:
            one.failure, one.is_unheard = unheard, True

    def _predict(self, one: Candidate, reference: Sample) -> int | None:
        """Say what it will bring, where nobody has yet; returns the memory that it is simulated to take."""
        found = simulated(reference.pipeline, reference.loader, plain(one.knobs), self.potential)
        ratio, predicted_bytes = found or (None, None)
        size = batch_size_in(one.knobs)
        if size is not None:
            ratio = self._ratio_at(size) if len(one.knobs) == 1 else None
        one.predicted_ratio = ratio if one.predicted_ratio is None else one.predicted_ratio
        return predicted_bytes

    def _refusal(self, one: Candidate, predicted_bytes: int | None) -> str | None:
        """Why it must not be started; settled once, and written down, because what is free changes."""
        wanted = {**self.start, **self.base, **one.knobs, "": "refused"}
        entry = self._journal.next(wanted) if self._journal.refuses(wanted) else None
        if entry is not None:
            return entry.refusal
        if self._journal.is_replaying:
            return None
        why = refusal(self.limits(), host_bytes=predicted_bytes) or self._too_large(one)
        if why is not None:
            self._journal.add(Entry("", wanted, 0.0, None, why))
        return why

    def _too_large(self, one: Candidate) -> str | None:
        """Why another batch size would leave no headroom: memory on the line through the two largest measured."""
        size = batch_size_in(one.knobs)
        if size is None or len(self._peaks) < LINE:
            return None
        host, device = (line_at(size, {known: peaks[i] for known, peaks in self._peaks.items()}) for i in (0, 1))
        total = self.references[-1].device_total_bytes if self.references else None
        limits = replace(self.limits(), device_bytes=total)
        return refusal(limits, host_bytes=int(host / HEADROOM), device_bytes=int(device / HEADROOM))

    def _ratio_at(self, size: int) -> float | None:
        """Another batch size, from what a step took at two others: one size says nothing about what a step costs."""
        now = self.references[-1].batch_size
        if now is None or now not in self._steps or len(self._steps) < LINE:
            return None
        step_s = {known: median(took) for known, took in self._steps.items()}
        return size / now * step_s[now] / max(line_at(size, step_s), 1e-9)

    def _judge(self, one: Candidate, *, last: bool) -> None:
        if one.rounds:
            one.judgement = self._judge_now(one.rounds, self.against_itself(), last) or one.judgement
        elif last:
            one.failure = ("undecided", "the budget was spent before its first round")


def _streaming(samples: Sequence[Sample]) -> int:
    """Workers that read a stream."""
    facts = samples[0].loader if samples else None
    return facts.num_workers if facts is not None and facts.stream else 0


def line_at(size: int, known: Mapping[int, float]) -> float:
    """A figure at another size, on the line through the two largest; never less than that of the larger one."""
    (low, at_low), (high, at_high) = sorted(known.items())[-2:]
    slope = max(at_high - at_low, 0.0) / (high - low)
    return at_high + slope * max(size - high, 0)


def batch_size_in(knobs: Mapping[str, Value]) -> int | None:
    """The batch size among these knobs, whatever the setting is called in full."""
    found = plain(knobs).get("batch_size")
    return found if isinstance(found, int) else None


def _failure(sample: Sample, reference: Sample | None) -> tuple[Decision, str] | None:
    """What became of a candidate that cannot be measured."""
    ending = sample.outcome.ending
    if ending in OVER_LIMIT:
        return "unsafe", sample.outcome.reason
    if sample.memory_failed:
        return "unsafe", "it ran out of memory"
    if sample.refused:
        return "revert", sample.refused[0]
    total, peak = sample.device_total_bytes, sample.device_peak_bytes or 0
    before = reference.device_peak_bytes or 0 if reference else 0
    if total and peak > max(HEADROOM * total, before):
        return "unsafe", f"it took {peak / total:.0%} of the device's memory, which leaves no headroom"
    if sample.step_s is None:
        return "revert", sample.outcome.reason if ending != "finished" else f"only {sample.steps} steps were seen"
    return None


def _unheard(one: Candidate, sample: Sample) -> tuple[Decision, str] | None:
    """A key that the script does not read for its loader is none of the knobs."""
    for name, value in one.expects.items():
        has = getattr(sample.loader, name, None)
        if sample.loader is not None and has != value:
            return "revert", f"{', '.join(one.knobs)} does not reach the loader, which has {name}={has} all the same"
    return None


def _side_by_side(reference: Sample, sample: Sample) -> Round:
    """Seconds a sample of both, in epochs that are alike: a cold one says nothing about a warm one."""
    before_s, after_s = reference.sample_beside(sample), sample.sample_beside(reference)
    assert before_s is not None
    assert after_s is not None
    return Round((before_s,), (after_s,))


def _is_measured(entry: Entry) -> bool:
    return entry.sample is not None and entry.sample.step_s is not None


def _clear(place: Path) -> None:
    """Make room where a killed tuner's last process was; what that had overwritten is put back first."""
    recover(place)
    if (place / JOURNAL).exists() or any(place.glob(f"**/{KEPT}*")):  # it was said why; what is the user's stays
        aside = next(one for n in range(1, 1000) if not (one := place.with_name(f"{place.name}-kept-{n}")).exists())
        place.rename(aside)
        print(f"stoker: what could not be put back lies in {aside}", file=sys.stderr)
    shutil.rmtree(place, ignore_errors=True)


def no_reference(outcome: Outcome, steps: int, output: Path, *, runs_before: int) -> StokerError:
    """Why nothing can be compared; the command's own words first."""
    words = output.read_text(errors="replace").rstrip()
    if outcome.ending == "time" and not runs_before:
        return UsageError(
            f"one run did not end within the budget ({outcome.reason}; {steps} training steps were seen); set a larger "
            "--budget, or a smaller --steady. If the script hangs when its training is over, more time will not help"
        )
    if outcome.ending != "finished":
        kind = UnsafeError if outcome.ending in OVER_LIMIT else ScriptFailedError
        when = f"as it is, after {runs_before} runs that did not" if runs_before else "as it is, so nothing was tried"
        return kind(f"{words}\nthe command failed {when}: {outcome.reason}".lstrip())
    return TooFewStepsError(
        f"{steps} training steps were seen in {outcome.seconds:.0f} s; more are needed to compare. "
        "Is this the script that trains, and does it train with torch?"
    )
