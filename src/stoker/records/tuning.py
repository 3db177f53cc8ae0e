"""What `tune` tried and decided."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from stoker.records.diagnosis import Finding
from stoker.records.observed import LoaderFacts, Machine, Value

Decision = Literal["keep", "revert", "undecided", "unsafe"]


@dataclass(frozen=True, slots=True)
class Reference:
    """The user's own configuration and what it reaches."""

    knobs: Mapping[str, Value]
    step_s: float
    samples_per_s: float | None


@dataclass(frozen=True, slots=True)
class Noise:
    """The reference against itself: a ratio inside this band means nothing."""

    ratio_low: float
    ratio_high: float


@dataclass(frozen=True, slots=True)
class Round:
    """Seconds a sample in each steady window of one reference process and of one candidate process."""

    reference_s: tuple[float, ...]
    candidate_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Interval:
    """A ratio of rates, candidate over reference, with its 95 % interval; above 1 is faster."""

    ratio: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the rounds so far say. A decision of None means that more rounds are needed."""

    interval: Interval
    decision: Decision | None
    reason: str


LossVerdict = Literal["same", "differs", "unknown"]


@dataclass(frozen=True, slots=True)
class LossCheck:
    """The first losses of a candidate against the reference's, with the same seed.

    `difference` is the mean distance as a share of the reference's mean loss, `noise` the same between two references;
    `tolerance` is what counts as the same.
    """

    verdict: LossVerdict
    difference: float | None
    noise: float | None
    tolerance: float
    steps: int


@dataclass(frozen=True, slots=True)
class Trial:
    """One measured change of one knob. Ratios are step rates, candidate over reference: above 1 is faster.

    `knobs` is all that was changed at once (several when kept knobs are tried together), `base` what had been kept
    before, so that both sides had it. `rounds` holds the seconds a sample of each pair of processes.
    """

    knob: str
    before: Value = dataclasses.field(metadata={"key": "from"})
    after: Value = dataclasses.field(metadata={"key": "to"})
    hypothesis: str
    predicted_ratio: float | None
    ratio: float | None
    ci_low: float | None
    ci_high: float | None
    decision: Decision
    reason: str
    host_peak_bytes: int | None
    device_peak_bytes: int | None
    changes_results: bool
    knobs: Mapping[str, Value] = dataclasses.field(default_factory=dict)
    base: Mapping[str, Value] = dataclasses.field(default_factory=dict)
    cause: str | None = None  # the finding that it came from
    gain_max: float | None = None  # that finding's bound, where nothing could be simulated
    prediction_error: float | None = None  # predicted ÷ measured, less 1
    rounds: tuple[Round, ...] = ()
    noise: Noise | None = None
    reference_step_s: float | None = None
    step_s: float | None = None
    reference_batch: int | None = None  # samples in a batch of the reference
    batch: int | None = None
    reference_wait_share: float | None = None  # of steady steps of the reference, waiting for data
    wait_share: float | None = None
    loss: LossCheck | None = None
    seconds: float = 0.0  # what trying it took


Ending = Literal["finished", "failed", "ram", "shm", "device", "time", "processes", "interrupted"]
"""How a guarded command ended: by itself, at one of its limits, or because somebody stopped it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that the whole process tree of one trial may take; `None` is not limited.

    `host_bytes` is private memory and shared memory, each page counted once; `shm_bytes` is the shared part of it.
    """

    host_bytes: int
    shm_bytes: int | None = None
    device_bytes: int | None = None
    seconds: float | None = None
    processes: int | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one guarded command, and the most that its whole process tree held at once.

    `exit_code` is negative for a signal and `None` when nobody saw it end. `guarded_by` is "cgroup v2", "cgroup v1"
    (the kernel held the limit of memory) or "watch" (Stoker did, looking every tenth of a second or more often).
    `guard_cpu_s` is what watching cost.
    """

    ending: Ending
    exit_code: int | None
    reason: str
    seconds: float
    host_peak_bytes: int | None
    shm_peak_bytes: int | None
    device_peak_bytes: int | None
    processes_peak: int | None
    guarded_by: str
    guard_cpu_s: float | None


@dataclass(frozen=True, slots=True)
class Final:
    """All kept knobs together, against the reference."""

    knobs: Mapping[str, Value]
    ratio: float | None
    ci_low: float | None
    ci_high: float | None


@dataclass(frozen=True, slots=True)
class Goal:
    """A target the user set for the epoch, held against the measured ceilings.

    `feasible` is whether the ceilings allow it, `reached` whether what was kept reaches it; None is not known.
    """

    target_s: float | None
    feasible: bool | None
    why: str
    reached: bool | None = None


@dataclass(frozen=True, slots=True)
class Files:
    """Where a tuning's outputs lie."""

    decision_md: str | None
    stoker_toml: str | None
    report_html: str | None
    config_patch: str | None = None


@dataclass(frozen=True, slots=True)
class Tuning:
    """What `stoker tune --json` writes; its keys are a contract."""

    reference: Reference
    noise: Noise | None
    trials: tuple[Trial, ...]
    final: Final
    goal: Goal | None
    files: Files
    context: "TuningContext | None" = None
    limits: "PhysicalLimits | None" = None
    findings: tuple[Finding, ...] = ()
    alternatives: tuple["Alternative", ...] = ()
    median_prediction_error: float | None = None  # of all trials that were simulated and measured


@dataclass(frozen=True, slots=True)
class TuningContext:
    """What was tuned, on what, and at what cost. `ended` says why nothing more was tried."""

    command: tuple[str, ...]
    started_s: float
    machine: Machine
    device: str
    loader: LoaderFacts | None
    steps_per_epoch: int | None
    epoch_s: float | None  # the reference's, as forecast, with validation and checkpoints
    budget_s: float
    spent_s: float
    processes: int
    ended: str
    cold: bool = False
    device_profile: str | None = None
    config: str | None = None
    interrupted: bool = False
    reference_samples_s: tuple[float, ...] = ()  # seconds a sample of each process of the user's own configuration
    caution: str | None = None  # why its rates may not hold for a longer run


@dataclass(frozen=True, slots=True)
class PhysicalLimits:
    """Ceilings in samples a second, and an epoch if only the compute half were left."""

    loader_samples_per_s: float | None
    compute_samples_per_s: float | None
    binds: str
    compute_epoch_s: float | None


@dataclass(frozen=True, slots=True)
class Alternative:
    """Something that is not a knob, with its sizes and costs."""

    name: str
    brings: str
    costs: str
