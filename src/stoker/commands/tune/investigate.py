"""The arrow of a tuning: diagnose, reference against itself, candidates in groups, the kept ones together, again."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from stoker.advise.plan import WORTH, Idea, Situation, ideas
from stoker.commands.tune.request import Request
from stoker.decide import (
    CLEAR,
    EARLY,
    LOOKS,
    LOSS_TOLERANCE,
    LOSS_TOLERANCE_OTHER_BATCH,
    compare_losses,
    judge,
    measure_noise,
)
from stoker.errors import StokerError, UsageError
from stoker.observe.meters import machine
from stoker.predict.whatif import WORKER_START_S
from stoker.records.diagnosis import Diagnosis
from stoker.records.observed import Observation, Value
from stoker.records.tuning import Judgement, LossCheck, Noise, Round
from stoker.trial.command import plain
from stoker.trial.contest import Candidate, Contest
from stoker.trial.limits import refusal
from stoker.trial.measure import Sample

NOISE_RUNS, FEWEST_NOISE_RUNS = 3, 2
"""Runs of the reference before anything is tried; the first trial's rounds add as many before it is judged."""
WIDEST = 4
"""Candidates that share a reference in one round."""
COMPARABLE = 0.5
"""Ideas are tried in one group if their predicted gain is at least this much of the first one's, as logarithms."""
DOCTOR_SHARE, DOCTOR_LEAST_S, DOCTOR_MOST_S = 0.1, 10.0, 60.0
"""The part of the budget that the diagnosis may take."""
START_SHARE = 0.03
"""Starting workers is looked at where it takes this much of an epoch."""
TOGETHER = "the kept knobs together"
ASKED = "asked for on the command line"


@dataclass(slots=True)
class Found:
    """What a tuning has come to so far; also after an interruption."""

    said: Diagnosis | None = None
    seen: Observation | None = None
    first: Sample | None = None
    own: Sequence[Sample] = ()  # every run of the user's own configuration
    start: Mapping[str, Value] = field(default_factory=dict)  # what the command's places held in them
    done: list[Candidate] = field(default_factory=list)
    losses: dict[int, LossCheck] = field(default_factory=dict)  # by the candidate's place in `done`
    noises: dict[int, Noise] = field(default_factory=dict)
    kept: list[Candidate] = field(default_factory=list)  # in the order they became part of the reference
    final: Candidate | None = None
    ended: str = "it was interrupted"

    @property
    def caution(self) -> str | None:
        """Why rates that were measured here may not be those of a longer run, or of the same training."""
        if any(one.repeats for one in self.done):
            return (
                "the data set is a stream, and of several workers each brings all of it, unless it takes a part by "
                "itself (torch.utils.data.get_worker_info): an epoch may then hold every sample more than once"
            )
        if self.first is None or not self.first.is_short:
            return None
        return (
            f"the command ends by itself after {self.first.steps} steps, so its rates are those of a start: "
            "batches that workers have ready then come free. Let it make more steps or epochs"
        )


def judge_at_looks(rounds: Sequence[Round], reference: Sequence[Round], last: bool) -> Judgement | None:
    """What the rounds say, at the looks that were settled beforehand: looking more often would find more by chance."""
    if last or len(rounds) in (*CLEAR, *LOOKS):
        return judge(rounds, measure_noise(reference), last=last)
    return None


class Investigation:
    """One tuning. `found` is valid at any moment."""

    def __init__(
        self,
        contest: Contest,
        request: Request,
        diagnose: Callable[[float], tuple[Observation, Diagnosis] | None],
        tell: Callable[[str], None],
        tried: Callable[[int, Candidate], None],
    ) -> None:
        self.contest = contest
        self.request = request
        self.found = Found(own=contest.own_references, start=request.start)
        self._diagnose = diagnose
        self._tell = tell
        self._tried = tried
        self._asked = [Idea(dict(knobs), ASKED) for knobs in request.asked]
        self._cores = machine().cores

    def run(self) -> Found:
        """From the diagnosis to the last decision."""
        self._examine()
        self._measure_reference()
        try:
            while (group := self._next_group()) is not None:
                self._try(group)
                self._adopt(group)
            self._finish()
        except StokerError as error:  # the reference, which had run before
            self.found.ended = str(error).splitlines()[-1]
            raise
        return self.found

    # ---- before anything is tried

    def _examine(self) -> None:
        if self.request.only and self.request.goal_s is None:
            return
        budget_s = min(max(DOCTOR_SHARE * self.request.budget_s, DOCTOR_LEAST_S), DOCTOR_MOST_S)
        told = self._diagnose(budget_s)
        if told is not None:
            self.found.seen, self.found.said = told
            now, most = told[1].samples_per_s, told[1].ceilings.compute_samples_per_s
            self.contest.own_potential = most / now if now and most else None
            self._see_starts(told[1])

    def _see_starts(self, said: Diagnosis) -> None:
        """Where starting workers takes a part of the epoch, runs must see the start of a second one."""
        parts, facts = said.epoch_parts, next((one.facts for one in said.loaders if one.role == "train"), None)
        asked = any("persistent_workers" in knobs for knobs in self.request.asked)
        if not parts or facts is None or said.prediction is None:
            return
        steps_s = parts["first_batch"] + parts["head"] + parts["steady"]
        start_s = parts["first_batch"] if facts.num_workers else self._cores * WORKER_START_S
        matters = not facts.persistent_workers and start_s >= START_SHARE * steps_s
        if (matters or asked) and steps_s > self.request.steady_s / 2:
            self.contest.manner = replace(self.contest.manner, epoch_s=self.request.steady_s / 2)

    def _measure_reference(self) -> None:
        self.found.first = self.contest.refer()
        for _ in range(self._noise_runs() - 1):
            self.contest.refer()
        noise = measure_noise(self.contest.against_itself())
        step_s = median(sample.step_s or 0.0 for sample in self.found.own)
        band = f"{noise.ratio_low:.2f} to {noise.ratio_high:.2f}"
        self._tell(f"reference {step_s * 1e3:.1f} ms a step; against itself {band}")
        if self.found.caution:
            self._tell(f"caution: {self.found.caution}")

    def _noise_runs(self) -> int:
        """How many runs of the reference the budget allows before the first comparison; at least two."""
        room = int(self.contest.left_s / self.contest.process_s)
        if room < FEWEST_NOISE_RUNS - 1 + 2 * EARLY:
            needed_s = self.contest.process_s * (FEWEST_NOISE_RUNS - 1 + 2 * EARLY)
            raise UsageError(
                f"the budget is too small for one comparison: one run takes {self.contest.process_s:.0f} s, so "
                f"{needed_s + self.contest.spent_s:.0f} s are needed; set --budget to that or more"
            )
        spare = room - 2 * LOOKS[0]  # one candidate can be looked at as the rule says
        return min(NOISE_RUNS, max(FEWEST_NOISE_RUNS, spare + 1))

    # ---- what is next

    def _next_group(self) -> list[Candidate] | None:
        """The next candidates to try side by side; None when there is nothing left, or no time."""
        reserve = 2 * EARLY if self.found.kept else 0  # for all kept knobs together, against the user's own
        room = int(self.contest.left_s / self.contest.process_s) - reserve
        waiting = self._waiting()
        if not waiting:
            left = "all that was asked for was tried" if self.request.only else None
            self.found.ended = left or "nothing that is left is predicted to bring 3 %"
            return None
        if room < 2 * EARLY:
            self.found.ended = f"the budget leaves no time to try {_knobs(waiting[0].knobs)}"
            return None
        width = min(WIDEST, max(1, room // LOOKS[0] - 1))  # so many can be looked at as the rule says
        return [self._candidate(idea) for idea in waiting[:width]]

    def _candidate(self, idea: Idea) -> Candidate:
        """What is planned goes through the user's config file, where that has a place for it: it can become a patch."""
        keys = {} if idea.hypothesis == ASKED else {name: self._key_of(name) for name in idea.knobs}
        knobs = {keys.get(name) or name: value for name, value in idea.knobs.items()}
        expects = {name: idea.knobs[name] for name, key in keys.items() if key}
        return Candidate(
            knobs, idea.hypothesis, idea.cause, idea.gain_max, predicted_ratio=idea.predicted_ratio, expects=expects
        )

    def _key_of(self, name: str) -> str | None:
        facts = self.found.first.loader if self.found.first else None
        if not hasattr(facts, name):
            return None
        key = self.contest.command.key_of(name, getattr(facts, name))
        unheard = any(key in one.knobs for one in self.found.done if one.is_unheard)
        return None if unheard else key

    def _waiting(self) -> list[Idea]:
        tried = [dict(one.knobs) for one in self.found.done if not self._may_be_set_now(one)]
        asked = [idea for idea in self._asked if dict(idea.knobs) not in tried and not self._is_settled(idea)]
        if asked:
            now = self._situation(tried)
            return sorted(asked, key=lambda idea: -_promise(now.ratio(plain(idea.knobs))))
        searched = self._searched(tried)
        if searched or self.request.only:
            return searched
        planned = ideas(self._situation(tried))
        least = COMPARABLE * math.log(planned[0].expected) if planned else 0.0
        return [idea for idea in planned if math.log(idea.expected) >= least]

    def _is_settled(self, idea: Idea) -> bool:
        """True if the reference has it already, or the user's own configuration, which it was measured against."""
        facts = self.found.first.loader if self.found.first else None
        command = self.contest.command
        own = {name: getattr(facts, name) for name in idea.knobs if command.is_attached(name) and hasattr(facts, name)}
        return idea.knobs == own or all(self.contest.base.get(name, ...) == idea.knobs[name] for name in idea.knobs)

    def _may_be_set_now(self, one: Candidate) -> bool:
        """True if it was not really tried: it could not be set beside what there was, or did not reach the loader."""
        refused = any(sample.refused for sample in one.samples)
        return one.is_unheard or (refused and dict(one.base) != self.contest.base)

    def _searched(self, tried: Sequence[Mapping[str, Value]]) -> list[Idea]:
        """The fastest safe batch: twice and half of the present one, as long as that is proven to be faster."""
        for name in self.request.search:
            own = self.request.start.get(name) or self.contest.command.before(name)
            own = own or (self.found.first.batch_size if self.found.first else None)
            size = self.contest.base.get(name, own)
            known = {one[name] for one in tried if name in one} | {own}
            if isinstance(size, int):
                sizes = [value for value in (2 * size, size // 2) if value and value not in known]
                if sizes:
                    return [Idea({name: value}, "the fastest batch that is safe") for value in sizes]
        return []

    def _situation(self, tried: Sequence[Mapping[str, Value]]) -> Situation:
        present = self.contest.references[-1]
        limits = self.contest.limits()
        return Situation(
            said=self.found.said,
            pipeline=present.pipeline,
            facts=present.loader,
            cores=self._cores,
            base=plain(self.contest.base),
            gained=self.contest.gained,
            tried=[plain(one) for one in tried],
            failed=[plain(one.knobs) for one in self.found.done if one.samples and one.samples[-1].step_s is None],
            keep_results=self.request.keep_results,
            fits=lambda size: refusal(limits, host_bytes=size) is None,
            potential=self.contest.potential,
        )

    # ---- trying

    def _try(self, group: Sequence[Candidate]) -> None:
        self.found.done += group
        self.contest.decide(group)
        for one in group:
            self._check_losses(one)
            self._note(one)

    def _note(self, one: Candidate) -> None:
        number = next(i for i, other in enumerate(self.found.done) if other is one)
        self.found.noises[number] = measure_noise(self.contest.against_itself())
        self._tried(number, one)
        decision, reason = one.verdict
        self._tell(f"{_knobs(one.knobs)}: {decision}: {reason}")

    def _check_losses(self, one: Candidate) -> None:
        """A knob that can change the results must leave the first losses as they were, or it is not kept."""
        command = self.contest.command
        if not one.samples or not (one.repeats or any(command.changes_results(name) for name in one.knobs)):
            return
        other_batch = one.repeats or bool({"batch_size", "accumulation"} & plain(one.knobs).keys())
        tolerance = LOSS_TOLERANCE_OTHER_BATCH if other_batch else LOSS_TOLERANCE
        check = compare_losses(
            [sample.losses for sample in one.references],
            [sample.losses for sample in one.samples],
            tolerance=tolerance,
            by_step=not other_batch,
        )
        self.found.losses[next(i for i, other in enumerate(self.found.done) if other is one)] = check
        if check.verdict == "differs" and one.is_kept:
            how = "is no number" if check.difference is None else f"differs by {check.difference:.1%}"
            one.failure = ("revert", f"faster, but its loss {how} in the first {check.steps} steps")
        if one.repeats and one.is_kept and self.request.keep_results:
            one.failure = (
                "revert",
                "faster, but each worker may bring all of the stream, which changes what is trained",
            )

    def _adopt(self, group: Sequence[Candidate]) -> None:
        """The best value of each knob that was kept; several knobs only together, if that is proven too."""
        best: dict[tuple[str, ...], Candidate] = {}
        for one in sorted((one for one in group if one.is_kept), key=lambda one: one.ratio):
            best[tuple(one.knobs)] = one
        if not best:
            return
        chosen = max(best.values(), key=lambda one: one.ratio)
        names = {name for one in best.values() for name in one.knobs}
        if all(set(one.knobs) != names for one in best.values()):
            both = self._together(list(best.values()))
            if both is not None and both.is_kept and both.ratio >= chosen.ratio:
                chosen = both
        self.found.kept.append(chosen)
        self.contest.rebase(chosen)

    def _together(self, kept: Sequence[Candidate]) -> Candidate | None:
        if self.contest.left_s < 2 * EARLY * self.contest.process_s:
            return None
        knobs = {name: value for one in kept for name, value in one.knobs.items()}
        both = Candidate(knobs, TOGETHER)
        self._try([both])
        return both

    # ---- at the end

    def _finish(self) -> None:
        """All kept knobs against the user's own configuration: measured if they came one after the other."""
        kept = self.found.kept
        if not kept:
            return
        self.found.final = kept[0] if len(kept) == 1 else None
        if len(kept) > 1 and self.contest.left_s > 2 * EARLY * self.contest.process_s:
            last = Candidate(dict(self.contest.base), TOGETHER)
            self.contest.rebase(None)
            self._try([last])
            self.found.final = last


def _promise(ratio: float | None) -> float:
    """What to order by: what is surely worth nothing comes after what nobody can predict."""
    return WORTH if ratio is None else ratio


def _knobs(knobs: Mapping[str, Value]) -> str:
    return ", ".join(f"{name}={value}" for name, value in knobs.items())
