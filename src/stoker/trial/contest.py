"""Candidates against a reference: rounds of fresh processes in random order, until all are judged or time is up.

Which candidates, and when a candidate is judged, is told from outside.
"""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from stoker.errors import ScriptFailedError, StokerError, TooFewStepsError, UsageError
from stoker.predict.pipeline import step_s
from stoker.predict.whatif import KNOWN, changed
from stoker.records import Decision, Judgement, Limits, Round, Value
from stoker.trial.limits import choose, refusal
from stoker.trial.measure import Sample, measure

PATIENCE = 6.0
"""A candidate that takes this many times the reference's time is ended."""

Judge = Callable[[Sequence[Round], Sequence[Round], bool], Judgement | None]
"""Rounds of the candidate, of the reference against itself, and whether more can be had → what they say, if asked."""


@dataclass(slots=True)
class Candidate:
    """Knobs to try together, and what came of them."""

    knobs: Mapping[str, Value]
    hypothesis: str
    rounds: list[Round] = field(default_factory=list)
    judgement: Judgement | None = None
    failure: tuple[Decision, str] | None = None
    samples: list[Sample] = field(default_factory=list)
    predicted_ratio: float | None = None

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
        return self.judgement is not None and self.judgement.decision == "keep"


class Contest:
    """Measures candidates against a reference, within a budget of time and of memory."""

    def __init__(
        self,
        command: Sequence[str],
        directory: Path,
        *,
        budget_s: float,
        steady_s: float,
        max_ram_bytes: int | None,
        judge: Judge,
        said: Callable[["Candidate"], None],
    ) -> None:
        self.command = command
        self._judge_now = judge
        self._said = said
        self.base: dict[str, Value] = {}
        self.references: list[Sample] = []
        self.process_s = 0.0
        self._directory = directory
        self._max_ram_bytes = max_ram_bytes
        self._steady_s = steady_s
        self._ends_s = time.monotonic() + budget_s
        self._draw = random.Random(0)  # noqa: S311  an order, not a secret
        self._count = 0

    @property
    def left_s(self) -> float:
        """What is left of the budget."""
        return self._ends_s - time.monotonic()

    def limits(self) -> Limits:
        """What one trial may take now."""
        seconds = PATIENCE * self.process_s if self.process_s else max(self.left_s, 1.0)
        return choose(self._max_ram_bytes, seconds=seconds)

    def run(self, knobs: Mapping[str, Value]) -> Sample:
        """One process."""
        self._count += 1
        place = self._directory / f"{self._count:03}"
        return measure(self.command, {**self.base, **knobs}, place, self.limits(), steady_s=self._steady_s)

    def refer(self) -> Sample:
        """One process of the reference; one that fails ends the tuning, because nothing can be compared with it."""
        sample = self.run({})
        if sample.step_s is None:
            raise _no_reference(sample, self._directory / f"{self._count:03}" / "output.txt")
        self.references.append(sample)
        self.process_s = max(self.process_s, sample.outcome.seconds)
        return sample

    def against_itself(self) -> list[Round]:
        """The reference's runs with the present knobs, each against the one before."""
        return [Round((_rate(a),), (_rate(b),)) for a, b in pairwise(self.references)]

    def rebase(self, knobs: Mapping[str, Value] | None) -> None:
        """Let kept knobs be part of the reference; None goes back to the user's own."""
        self.base = {} if knobs is None else {**self.base, **knobs}
        self.references.clear()

    def decide(self, candidates: Sequence[Candidate]) -> None:
        """Rounds of the reference and all open candidates, in random order, until none is open."""
        while opened := [one for one in candidates if one.is_open]:
            if self.left_s < self.process_s * (1 + len(opened)):
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
            if one.failure is None:
                one.rounds.append(Round((_rate(reference),), (_rate(one.samples[-1]),)))
                self._judge(one, last=False)
            self._said(one)

    def _try(self, one: Candidate) -> None:
        one.predicted_ratio, predicted_bytes = predicted(self.references[-1], one.knobs)
        unsafe = refusal(self.limits(), host_bytes=predicted_bytes)
        if unsafe is not None:
            one.failure = ("unsafe", unsafe)
            return
        sample = self.run(one.knobs)
        one.samples.append(sample)
        ending = sample.outcome.ending
        if ending in ("ram", "shm", "device", "processes"):
            one.failure = ("unsafe", sample.outcome.reason)
        elif sample.refused:
            one.failure = ("revert", sample.refused[0])
        elif sample.step_s is None:
            reason = sample.outcome.reason if ending != "finished" else f"only {sample.steps} steps were seen"
            one.failure = ("revert", reason)

    def _judge(self, one: Candidate, *, last: bool) -> None:
        if one.rounds:
            one.judgement = self._judge_now(one.rounds, self.against_itself(), last) or one.judgement
        elif last:
            one.failure = ("undecided", "the budget was spent before its first round")


def _rate(sample: Sample) -> float:
    assert sample.sample_s is not None
    return sample.sample_s


def predicted(reference: Sample, knobs: Mapping[str, Value]) -> tuple[float | None, int | None]:
    """Candidate over reference: the ratio of rates, and the bytes of memory, as simulated; None where it cannot be."""
    pipeline, facts = reference.pipeline, reference.loader
    if pipeline is None or facts is None or any(name not in KNOWN for name in knobs):
        return None, None
    other = changed(pipeline, facts, knobs)
    size = knobs.get("batch_size")
    samples = size / facts.batch_size if isinstance(size, int) and facts.batch_size else 1.0
    return samples * step_s(pipeline) / step_s(other), other.memory_bytes


def _no_reference(sample: Sample, output: Path) -> StokerError:
    """Why nothing can be compared; the command's own words first."""
    words = output.read_text(errors="replace").rstrip()
    if sample.outcome.ending == "time":
        return UsageError(f"one run did not end within the budget ({sample.outcome.reason}); set a larger --budget")
    if sample.outcome.ending != "finished":
        return ScriptFailedError(
            f"{words}\nthe command failed as it is, so nothing was tried: {sample.outcome.reason}".lstrip()
        )
    return TooFewStepsError(
        f"{sample.steps} training steps were seen in {sample.outcome.seconds:.0f} s; more are needed to compare. "
        "Is this the script that trains, and does it train with torch?"
    )
