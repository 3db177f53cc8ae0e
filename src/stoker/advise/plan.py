"""What to try next: from the doctor's findings and from the simulation, in order of predicted gain.

Pure. Asked again whenever something was kept, from what the new reference measured; what brings less than three percent
is not worth a trial.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from stoker.knobs import KNOBS
from stoker.predict.pipeline import Pipeline
from stoker.predict.whatif import simulated
from stoker.records.diagnosis import Candidate, Diagnosis, Finding
from stoker.records.observed import LoaderFacts, Value

WORTH = 1.03
"""The least gain that is worth a trial; the decisions use the same figure."""
NEAR = 0.98
"""Of settings that are simulated this close to the best, the smallest is taken: it costs less memory."""
CROWDED = 0.95
"""What a simulated rate with more workers than cores is taken for: they cost caches that no simulation knows. Four
workers were simulated 2 % above two, and a grid of the same script had them 15 % behind (docs/trials.md)."""
WAITING_SHARE = 0.3
"""Workers that wait this much of their time may be more than the cores."""
GROWTH = 2
"""A batch is doubled as long as that is proven to be faster."""
ON_INPUT = {"num_workers", "prefetch_factor", "persistent_workers", "worker_threads", "multiprocessing_context"}


OF_WORKERS = ON_INPUT - {"num_workers"}
"""What means nothing without a worker."""


@dataclass(frozen=True, slots=True)
class Idea:
    """Knobs to try together, and why. `predicted_ratio` is simulated; `gain_max` is a bound, where nothing could be.

    A `neighbour` is simulated as no better than one that costs less, and tried after it.
    """

    knobs: Mapping[str, Value]
    hypothesis: str
    cause: str | None = None
    predicted_ratio: float | None = None
    gain_max: float | None = None
    neighbour: bool = False

    @property
    def expected(self) -> float:
        """What to order by."""
        return self.predicted_ratio if self.predicted_ratio is not None else self.gain_max or 1.0


@dataclass(frozen=True, slots=True)
class Situation:
    """Where the tuning stands: what the doctor found, and what the present reference measured."""

    said: Diagnosis | None
    pipeline: Pipeline | None
    facts: LoaderFacts | None
    cores: int
    base: Mapping[str, Value]
    gained: float  # by what was kept so far
    tried: Sequence[Mapping[str, Value]]
    keep_results: bool
    fits: Callable[[int], bool]  # in memory
    potential: float | None = None  # what the model itself allows, times the present rate
    failed: Sequence[Mapping[str, Value]] = ()  # of those tried: what crashed, or took more memory than it may

    @property
    def workers(self) -> int:
        """How many the reference has."""
        return int(self.base.get("num_workers", self.facts.num_workers if self.facts else 0) or 0)

    def ratio(self, knobs: Mapping[str, Value]) -> float | None:
        """Simulated: the rate with these knobs over the rate as it is."""
        found = simulated(self.pipeline, self.facts, knobs, self.potential)
        return None if found is None else found[0]

    def is_safe(self, knobs: Mapping[str, Value]) -> bool:
        """True if memory holds it, as far as simulated."""
        found = simulated(self.pipeline, self.facts, knobs)
        return found is None or self.fits(found[1])

    def is_new(self, workers: int) -> bool:
        """True if this number of workers was not tried; what failed with some of them would fail with more."""
        if self.facts is not None and self.facts.stream and self.workers < 2 <= workers:  # noqa: PLR2004
            return False  # each would bring all of the stream: that is other training, however fast
        counts = [one.get("num_workers") for one in self.tried]
        fewest = min((int(one["num_workers"] or 0) for one in self.failed if "num_workers" in one), default=None)
        return workers not in counts and (fewest is None or workers < fewest)

    def is_set(self, name: str, value: Value) -> bool:
        """True if the reference has this already."""
        if name in self.base:
            return self.base[name] == value
        return self.facts is not None and getattr(self.facts, name, None) == value


def ideas(now: Situation) -> list[Idea]:
    """Everything that is predicted to be worth a trial, the largest gain first; never what is set or was tried."""
    found: dict[tuple[tuple[str, Value], ...], Idea] = {}
    for idea in (*_from_findings(now), *_simulated(now)):
        key = tuple(sorted(idea.knobs.items()))
        if key not in found and _is_open(idea, now):
            found[key] = idea
    return sorted(found.values(), key=lambda idea: -idea.expected * (NEAR * CROWDED if idea.neighbour else 1.0))


def _is_open(idea: Idea, now: Situation) -> bool:
    if idea.expected < WORTH or dict(idea.knobs) in [dict(one) for one in now.tried]:
        return False
    if now.keep_results and any(KNOBS[name].changes_results for name in idea.knobs):
        return False
    return not all(now.is_set(name, value) for name, value in idea.knobs.items())


# ---- from the doctor -----------------------------------------------------------------------------------------


def _from_findings(now: Situation) -> Iterator[Idea]:
    for finding in now.said.findings if now.said else ():
        knobs = [(one, one.knob) for one in finding.candidates if one.kind == "knob" and one.knob is not None]
        # Where the simulation sees what one knob brings against a cause, it is right about the others of it too.
        fresh = [{name: one.value} for one, name in knobs if name not in now.base]
        is_seen = any((now.ratio(one) or 0.0) >= WORTH for one in fresh)
        for candidate, name in knobs:
            yield from _from_candidate(now, finding, candidate, name, is_seen=is_seen)
    yield from _larger_batch(now)


def _from_candidate(
    now: Situation, finding: Finding, candidate: Candidate, name: str, *, is_seen: bool
) -> Iterator[Idea]:
    if (name in now.base and name != "num_workers") or (name in OF_WORKERS and not now.workers):
        return
    knobs = {name: candidate.value}
    if not now.is_safe(knobs) or (name == "num_workers" and not now.is_new(int(candidate.value or 0))):
        return
    bound = finding.gain_max or WORTH
    if name in ON_INPUT:
        bound = max(bound / now.gained, 1.0)
    predicted = now.ratio(knobs)
    why = f"{candidate.text} ({finding.cause})"
    if predicted is not None and predicted < WORTH <= bound and not is_seen:
        predicted = None  # the experiments inside the run saw a gain that the simulation does not: try it
    yield Idea(knobs, why, finding.cause, predicted, None if predicted is not None else bound)


def _larger_batch(now: Situation) -> Iterator[Idea]:
    """Where each step costs a fixed amount, twice the samples may cost little more: doubled while that is proven."""
    if now.said is None or now.facts is None or not now.facts.batch_size:
        return
    cause = next((one for one in now.said.findings if one.cause in ("launch-bound", "python-loop")), None)
    size = now.base.get("batch_size", now.facts.batch_size)
    if cause is None or not isinstance(size, int):
        return
    if "batch_size" not in now.base and any("batch_size" in one for one in now.tried):
        return  # the first doubling was not faster
    knobs = {"batch_size": GROWTH * size}
    if now.is_safe(knobs):
        bound = max((cause.gain_max or GROWTH) / now.gained, 1.0)
        yield Idea(knobs, f"a step costs as much with twice the samples ({cause.cause})", cause.cause, None, bound)


# ---- from the simulation -----------------------------------------------------------------------------------------


def _simulated(now: Situation) -> Iterator[Idea]:
    if now.pipeline is None or now.facts is None:
        return
    yield from _workers(now, now.pipeline)
    yield from _no_more_than_cores(now, now.pipeline)
    if not now.workers:
        return
    yield from _best(now, "prefetch_factor", (1, 2, 4, 8), "more batches ready hide the slow ones")
    if not now.is_set("persistent_workers", True):
        knobs: dict[str, Value] = {"persistent_workers": True}
        why = "workers are not started anew for every epoch"
        yield Idea(knobs, why, _cause(now, "persistent_workers"), now.ratio(knobs))


def _workers(now: Situation, pipeline: Pipeline) -> Iterator[Idea]:
    """The number that is simulated as best, and its neighbour, because a simulation can be wrong by one step.

    Of those that were not tried yet: where the best one failed or was slower, the next one may still be faster.
    """
    counts = [count for count in worker_counts(pipeline, now.cores) if now.is_new(count)]
    safe = [count for count in counts if now.is_safe({"num_workers": count})]
    alone = {count: now.ratio({"num_workers": count}) or 1.0 for count in safe}
    kept = {
        count: max(alone[count], _kept_alive(now, count) if count and not pipeline.workers else 0) for count in safe
    }
    if not safe:
        return
    weighed = {count: ratio * (CROWDED if count > now.cores else 1.0) for count, ratio in kept.items()}
    near = [count for count in safe if weighed[count] >= NEAR * max(weighed.values())]
    best, above = near[0], near[1:]
    for count in (best, *above[:1]):
        more = count > pipeline.workers
        why = "batches are made in parallel while cores are idle" if more else "fewer processes share the cores"
        yield Idea({"num_workers": count}, why, _cause(now, "num_workers"), alone[count], neighbour=count > best)
        if kept[count] >= WORTH * alone[count]:
            both: dict[str, Value] = {"num_workers": count, "persistent_workers": True}
            why = f"{why}, and are not started anew for every epoch"
            yield Idea(both, why, _cause(now, "num_workers"), kept[count], neighbour=count > best)


def _no_more_than_cores(now: Situation, pipeline: Pipeline) -> Iterator[Idea]:
    """A simulation takes a batch's work as it was measured; where workers crowd the cores, it may be less with fewer.

    Each may unpack a shard again that another one has, or push it out of the processor's cache.
    """
    if pipeline.workers > now.cores and now.is_new(now.cores) and _waiting_share(pipeline) <= WAITING_SHARE:
        why = "no more processes than cores: each keeps data of its own"
        bound = WORTH if now.potential is None else now.potential
        yield Idea({"num_workers": now.cores}, why, _cause(now, "num_workers"), None, bound)


def _waiting_share(pipeline: Pipeline) -> float:
    return sum(pipeline.wait_s) / max(sum(pipeline.wait_s) + sum(pipeline.work_s), 1e-12)


def _kept_alive(now: Situation, count: int) -> float:
    """The first workers of a loader, kept alive: where epochs are short, starting them anew eats what they bring."""
    return now.ratio({"num_workers": count, "persistent_workers": True}) or 1.0


def worker_counts(pipeline: Pipeline, cores: int) -> list[int]:
    """Numbers worth simulating: up to twice the cores; further where workers wait more than they work."""
    most = 8 * cores if _waiting_share(pipeline) > WAITING_SHARE else 2 * cores
    counts = {0, 1, cores, pipeline.workers}
    count = cores
    while count < most:
        count *= 2
        counts.add(min(count, most))
    return sorted(counts)


def _best(now: Situation, name: str, values: Sequence[int], why: str) -> Iterator[Idea]:
    ratios = {value: now.ratio({name: value}) or 1.0 for value in values if now.is_safe({name: value})}
    if not ratios:
        return
    most = max(ratios.values())
    best = min(value for value, ratio in ratios.items() if ratio >= NEAR * most)
    yield Idea({name: best}, why, _cause(now, name), ratios[best])


def _cause(now: Situation, name: str) -> str | None:
    """The finding that asks for this knob."""
    findings = now.said.findings if now.said else ()
    return next((one.cause for one in findings if any(other.knob == name for other in one.candidates)), None)
