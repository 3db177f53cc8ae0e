"""What the doctor says."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from stoker.records.attributed import HotLine, LoaderWait, Phase, Spike, Spread
from stoker.records.observed import Value
from stoker.records.probes import Probes


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The rate each half would reach if the other were free; the lower one bounds the run."""

    loader_samples_per_s: float | None
    compute_samples_per_s: float | None


@dataclass(frozen=True, slots=True)
class Prediction:
    """The full epoch and run, put together from parts that were measured apart."""

    epoch_s: float
    low_s: float
    high_s: float
    run_s: float | None


@dataclass(frozen=True, slots=True)
class WorkerStages:
    """Seconds a worker spent in each stage of making batches."""

    read: float | None
    transform: float | None
    collate: float | None
    send: float | None


@dataclass(frozen=True, slots=True)
class Worker:
    """One loader worker over its whole life. CPU far below wall means that it waits, not that it works."""

    pid: int
    stages: WorkerStages
    cpu_s: float | None
    rss_peak_bytes: int | None


@dataclass(frozen=True, slots=True)
class Memory:
    """Peaks over the run. Host memory is private memory, so that shared pages are counted once."""

    host_peak_bytes: int | None
    device_peak_bytes: int | None
    shm_peak_bytes: int | None


@dataclass(frozen=True, slots=True)
class Device:
    """The accelerator, or the CPU. A low busy share means that it waits for the host."""

    name: str
    busy_share: float | None
    step_s: float | None = None
    """From the start of a step's work to its end, by the device's own clock; the median."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """One measured number that speaks for a finding."""

    name: str
    value: float | str
    unit: str


Risk = Literal["low", "medium", "high"]
Horizon = Literal["this run", "next run", "production"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One thing to do about a finding: a knob with a value, a change of code, of data layout, or Stoker's loader."""

    kind: Literal["knob", "code", "layout", "loader"]
    text: str
    knob: str | None
    value: Value
    hint: str  # code to write or a command to run; may be empty
    risk: Risk
    changes_results: bool
    horizon: Horizon


@dataclass(frozen=True, slots=True)
class Finding:
    """A cause with its evidence. `gain_max` is the speed-up if the cause were gone, bounded by the ceiling."""

    cause: str
    share: float | None
    gain_max: float | None
    confidence: float
    evidence: tuple[Evidence, ...]
    fix: str
    place: str | None = None  # the user's line, where there is one
    then: str | None = None  # what bounds the run once this is gone
    candidates: tuple[Candidate, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkerBudget:
    """Memory that this many workers would take, against what is free."""

    workers: int
    needed_bytes: int
    free_bytes: int
    fits: bool


@dataclass(frozen=True, slots=True)
class Bound:
    """The largest part of a steady step. `gain_max` is the speed-up if it vanished; None for the model's own work."""

    part: str
    share: float
    seconds: float
    gain_max: float | None


@dataclass(frozen=True, slots=True)
class MachineUse:
    """How the run used the machine. CPU shares are of the cores it may use: 1 means that none was idle for it."""

    cores: int
    quota_cores: float | None
    ram_bytes: int
    cpu_share: float | None
    main_cpu_share: float | None
    workers_cpu_share: float | None
    running_mean: float | None
    throttled_s: float | None
    disk_read_bytes_per_s: float | None
    disk_write_bytes_per_s: float | None
    net_received_bytes_per_s: float | None
    net_sent_bytes_per_s: float | None
    stolen_share: float | None = None
    """Of the core time that was wanted on this machine meanwhile: what the host of a virtual machine gave to others."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What `stoker doctor --json` writes; its keys are a contract."""

    wall_s: float
    steps: int
    epochs: int
    steps_per_epoch: int | None
    samples_per_s: float | None
    startup_s: float | None  # None if no training loop began
    first_batch_s: tuple[float, ...]
    steady_step_s: Spread | None
    mean_step_s: float | None
    phases: tuple[Phase, ...]
    unaccounted_share: float
    hot_lines: tuple[HotLine, ...]
    ceilings: Ceilings
    prediction: Prediction | None
    workers: tuple[Worker, ...]
    memory: Memory
    device: Device
    findings: tuple[Finding, ...]
    verdict: str | None  # the first finding's cause, or healthy; None if too little was seen to judge
    overhead_share: float | None
    step_phases: tuple[Phase, ...]  # of a mean steady step; their shares sum to one
    bound: Bound | None
    warmup_steps: int | None
    drift_share: float | None
    spikes: Spike | None
    epoch_s: tuple[float, ...]  # whole epochs that were really run, with what follows each
    loaders: tuple[LoaderWait, ...]
    machine: MachineUse
    notes: tuple[str, ...]
    worker_budget: tuple[WorkerBudget, ...] = ()
    restart_below_share: float | None = None  # a run that is less far than this gains by a restart with the first fix
    epoch_parts: Mapping[str, float] | None = None  # seconds of a full epoch by part; they add up to the forecast
    probes: Probes = field(default_factory=Probes)
    others_share: float | None = None
    """How much of the calmest replay, in which the script's own workers were idle, the loop waited for a core that
    other programs had. 0 is a quiet machine, from 0.2 on it was a crowded one. None: no replay was made."""
