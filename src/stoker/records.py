"""What passes between stages: frozen dataclasses that round-trip through JSON.

Nothing here measures, decides or formats. Seconds and bytes throughout; a share is 0 to 1. `None` means
"not measured", which is never the same as 0. `encode` and `decode` are each other's inverse for every record.

    record = decode(Diagnosis, json.loads(text))
    text = json.dumps(encode(record), allow_nan=False)
"""

import dataclasses
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import Any, Literal, TypeVar

Value = bool | int | float | str | None
"""What a knob can be set to."""

PhaseName = Literal[
    "startup",
    "first_batch",
    "data_wait",
    "transfer",
    "forward",
    "loss",
    "backward",
    "optimizer",
    "zero_grad",
    "sync",
    "validation",
    "checkpoint",
    "logging",
    "gc",
    "shutdown",
    "other",
]


# ---- what was observed -----------------------------------------------------------------------------------


class Kind(IntEnum):
    """What a span of the main thread's time is. An event's code is `kind << 1 | ended`, its argument above `ARG`."""

    ITER = 1  # a loader's __iter__: workers start here; argument: the loader
    NEXT = 2  # waiting for a batch; argument: the loader
    EXHAUSTED = 3  # the end of a NEXT that brought no batch; argument: the loader
    COPY = 4  # host to device
    FORWARD = 5  # outermost call of a module that has parameters
    LOSS = 6  # outermost call of a module that has none
    BACKWARD = 7
    OPTIMIZER = 8  # argument: the optimizer
    ZERO = 9
    SYNC = 10  # the host waits for the device
    NO_GRAD = 11  # a section, not a phase: what it holds decides
    SAVE = 12
    LOG = 13
    GC = 14
    RETIRE = 15  # a loader stops its workers
    EXIT = 16  # the script's own code has ended
    PROBE = 17  # Stoker's own experiments: cut out of the run's time


ARG = 8
"""The bit from which an event's code holds its argument."""

DEVICE_WORK = ("copy", "forward", "backward", "optimizer", "other")
"""What a piece of the device's work can be."""


@dataclass(frozen=True, slots=True)
class Line:
    """A place the sampler saw: the user's line, and the innermost function below it."""

    file: str
    line: int
    function: str
    leaf: str


@dataclass(frozen=True, slots=True)
class LoaderFacts:
    """A loader as the script configured it. `length` is in batches, None if it has none."""

    loader: int
    kind: str
    dataset: str
    length: int | None
    samples: int | None
    batch_size: int | None
    num_workers: int
    prefetch_factor: int | None
    pin_memory: bool
    persistent_workers: bool
    shuffled: bool
    start_method: str | None
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Cut:
    """An epoch that was let end early: `batches`, and `aside` more inside experiments, were delivered of `length`."""

    loader: int
    batches: int
    length: int | None
    time_ns: int
    aside: int = 0


# ---- what was tried ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of the run that was an experiment: it is cut out of the run's time. Costs are in seconds."""

    name: str
    start_ns: int
    end_ns: int
    planned_s: float
    batches: int = 0  # steps of the loop inside it


@dataclass(frozen=True, slots=True)
class Replay:
    """Steps of the loop on batches that lie ready: the compute ceiling. The device was waited for at both ends."""

    steps: int
    seconds: float
    cpu_s: float  # of the main thread
    queued_s: float  # the main thread, waiting for a core that others had
    device_s: float | None  # the device's own busy time meanwhile
    before_s: float | None  # a real step's seconds just before, without its wait for data
    batch_bytes: int
    batch_samples: int | None
    known: bool = False  # one batch that the loop had had already, again and again


@dataclass(frozen=True, slots=True)
class Stretch:
    """Real steps between two experiments. `queued_s` is what the main thread waited for a core meanwhile."""

    steps: int
    seconds: float
    queued_s: float


@dataclass(frozen=True, slots=True)
class Drain:
    """The loader emptied with nothing between batches: the data ceiling. `cpu_s` is the main thread's, receiving."""

    batches: int
    seconds: float
    cpu_s: float
    workers: int


@dataclass(frozen=True, slots=True)
class Cold:
    """Pieces of the files behind a batch, read with their pages dropped and again at once, in turns."""

    pieces: int
    size_bytes: int
    disk_bytes: int  # that really came from storage when the pages were dropped; far below the size: they were not
    cold_s: tuple[float, ...]  # of each piece
    warm_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Bench:
    """The user's data set read by a loader of our own. `labels` say what each batch of each worker was, in order.

    Labels: warm (the first), fresh (as the sampler orders, not read before), sequential (neighbours), again (the fresh
    ones a second time), second (again, in a new process), profile, text, cold (then its files, with their pages
    dropped), rate (for throughput only).
    """

    name: str
    workers: int
    pids: tuple[int, ...]
    labels: tuple[str, ...]
    start_ns: int
    end_ns: int
    batches: int
    seconds: float | None  # of the batches labelled rate, after the first of each worker
    trouble: str | None


@dataclass(frozen=True, slots=True)
class Call:
    """A function that took part in making a batch, from a profile of one."""

    file: str
    line: int
    function: str
    calls: int
    own_s: float
    total_s: float


@dataclass(frozen=True, slots=True)
class Making:
    """How one batch was made, function by function. `text_s` is the time in functions from text to integers."""

    samples: int
    seconds: float
    calls: int
    text_s: float | None
    text_place: str | None
    functions: tuple[Call, ...]
    files: tuple[str, ...] = ()  # some that were read


@dataclass(frozen=True, slots=True)
class LineOps:
    """Operations that one line of the user's code started in one step, most of them in one call of its function."""

    file: str
    line: int
    function: str
    ops: int
    in_one_call: int
    picks: int  # of these, how many pick out a part of a tensor


@dataclass(frozen=True, slots=True)
class Inspection:
    """One step under a dispatch mode: what really ran. FLOPs are those of matmuls and convolutions."""

    ops: int
    flops: float
    flops_by_dtype: Mapping[str, float]
    convolutions: int
    channels_last: int
    lines: tuple[LineOps, ...]
    autocast: bool
    matmul_precision: str
    half_ratio: float | None = None  # what the device itself would gain in half precision, where it could be asked


@dataclass(frozen=True, slots=True)
class Container:
    """What limits the process from outside, read inside it. `throttled_s` is since the first reading."""

    quota_cores: float | None
    throttled_s: float | None
    seconds: float
    shm_bytes: int | None
    shm_free_least_bytes: int | None


@dataclass(frozen=True, slots=True)
class Probes:
    """Every experiment of one run, and what else was read inside the process for the diagnosis."""

    windows: tuple[Window, ...] = ()
    stretches: tuple[Stretch, ...] = ()
    replays: tuple[Replay, ...] = ()
    drains: tuple[Drain, ...] = ()
    benches: tuple[Bench, ...] = ()
    makings: tuple[Making, ...] = ()
    cold: Cold | None = None
    inspection: Inspection | None = None
    ordering: "Ordering | None" = None
    container: Container | None = None
    padding_share: float | None = None
    shapes: int | None = None  # different shapes among the batches that were looked at …
    shaped_batches: int | None = None  # … of this many
    recompiles: int | None = None
    compile_s: float | None = None
    pickled_bytes: int | None = None
    pickle_s: float | None = None
    batched_fetch: bool | None = None
    default_collate: bool | None = None
    cudnn_benchmark: bool | None = None
    indices_in_sequence: float | None = None  # share of neighbouring indices in a batch that follow each other


# ---- what was observed, continued ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Track:
    """One process that trained: its events and samples, as columns of equal length. Times are of one clock."""

    pid: int
    rank: int | None
    start_ns: int
    end_ns: int
    times_ns: tuple[int, ...]
    codes: tuple[int, ...]
    sample_times_ns: tuple[int, ...]
    sample_lines: tuple[int, ...]
    lines: tuple[Line, ...]
    loaders: tuple[LoaderFacts, ...]
    cuts: tuple[Cut, ...]
    notes: tuple[str, ...]
    device: str | None
    device_busy_ns: int | None
    device_peak_bytes: int | None
    epochs_planned: int | None
    module_calls: int
    own_ns: int | None
    event_ns: int | None
    call_ns: int | None
    batch_samples: tuple[int, ...]
    probes: Probes = Probes()
    device_times_ns: tuple[int, ...] = ()
    device_step_us: tuple[int, ...] = ()
    """When a step's last work was queued, and how long its work lay on the device, from events read later."""
    made: tuple[str, ...] = ()
    """New files that the script wrote and left."""
    losses: tuple[float | None, ...] = ()  # of the first backwards, where asked for; None is not finite
    device_total_bytes: int | None = None
    device_starts_ns: tuple[int, ...] = ()  # of each piece of work on the device's own timeline, where it has one
    device_ends_ns: tuple[int, ...] = ()
    device_work: tuple[int, ...] = ()  # places in DEVICE_WORK


@dataclass(frozen=True, slots=True)
class WorkerBatch:
    """One batch as its worker made it. `blocked_s` is wall minus CPU minus waiting for a core: files and sockets."""

    begin_ns: int
    end_ns: int
    samples: int
    fetch_s: float
    collate_s: float
    send_s: float
    user_s: float
    system_s: float
    blocked_s: float
    queued_s: float
    major_faults: int
    minor_faults: int
    read_bytes: int
    disk_bytes: int
    sent_bytes: int
    tensors: int
    process_cpu_s: float = 0.0  # of all the process's threads
    opens: int = 0
    names: int = 0  # different names opened or asked for since the process began
    requests: int = 0
    net_bytes: int = 0
    result_bytes: int = 0
    result_hash: int = 0
    threads: int = 0
    private_bytes: int = 0  # of the process; 0 where it was not read
    pickled_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Ordering:
    """What the sampler cost in one process: seconds inside it, and the batches it ordered."""

    seconds: float
    batches: int


@dataclass(frozen=True, slots=True)
class WorkerTrack:
    """One worker process, or the main thread where it makes its batches itself (`worker` is then None)."""

    pid: int
    worker: int | None
    loader: int | None
    start_ns: int
    end_ns: int
    batches: tuple[WorkerBatch, ...]
    sample_lines: tuple[int, ...]
    lines: tuple[Line, ...]
    makings: tuple[Making, ...] = ()
    unpickle_s: float | None = None
    parent: int | None = None  # the process that started it: with several ranks, whose worker it is
    cold: Cold | None = None


@dataclass(frozen=True, slots=True)
class Meter:
    """The machine at one moment. Rates are since the meter before; what could not be read is None."""

    time_ns: int
    cpu_s: Mapping[str, float]  # per process of the run, since its start
    private_bytes: Mapping[str, int]
    rss_bytes: Mapping[str, int]
    shm_bytes: int | None
    free_bytes: int | None
    running: float | None  # processes that want a core
    throttled_s: float | None
    disk_read_bytes: int | None
    disk_write_bytes: int | None
    net_received_bytes: int | None
    net_sent_bytes: int | None
    device_busy_share: float | None
    device_bytes: int | None


@dataclass(frozen=True, slots=True)
class Machine:
    """What the run had at its disposal."""

    cores: int
    quota_cores: float | None
    ram_bytes: int
    shm_bytes: int | None


@dataclass(frozen=True, slots=True)
class Observation:
    """Everything that was seen of one run. The main track is the one that trained most."""

    run: str
    command: tuple[str, ...]
    started_s: float
    start_ns: int
    end_ns: int
    exit_code: int | None
    whole: bool
    interrupted: bool
    attached: bool
    ended_by_doctor: bool
    trouble: tuple[str, ...]
    tracks: tuple[Track, ...]
    workers: tuple[WorkerTrack, ...]
    meters: tuple[Meter, ...]
    machine: Machine


# ---- what it amounts to ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Step:
    """One pass of the training loop. `seconds` leaves out validation, checkpoints and the first batch's wait."""

    start_ns: int
    end_ns: int
    epoch: int
    is_first: bool
    seconds: float
    parts: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Pass:
    """One iteration over one loader. `is_whole` means that it ended by itself, `is_train` that it trained."""

    loader: int
    is_train: bool
    start_ns: int
    end_ns: int
    first_batch_s: float
    wait_s: float
    batch_s: float | None  # from one batch to the next, once those made ahead are used up
    batches: int
    length: int | None
    is_whole: bool
    is_cut: bool
    retire_s: float


@dataclass(frozen=True, slots=True)
class Spike:
    """Steps much longer than the others. `period` is in steps, None if they come without one."""

    count: int
    seconds: float
    period: int | None


@dataclass(frozen=True, slots=True)
class Steady:
    """The part of a run in which steps are alike. `drift_share` is how much they grew from its start to its end."""

    warmup_steps: int
    steps: tuple[int, ...]
    step_s: "Spread"
    mean_step_s: float
    drift_share: float | None
    spikes: Spike | None


@dataclass(frozen=True, slots=True)
class LoaderWait:
    """How long the main thread waited for one loader. `role` is train, validation or other."""

    facts: LoaderFacts
    role: str
    passes: int
    batches: int
    wait_s: float
    first_batch_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Attribution:
    """All of a run's wall time, named. Phases sum to it."""

    wall_s: float
    startup_s: float
    phases: tuple["Phase", ...]
    unaccounted_share: float
    hot_lines: tuple["HotLine", ...]
    steps: tuple[Step, ...]
    passes: tuple[Pass, ...]
    steady: Steady | None
    loaders: tuple[LoaderWait, ...]
    between_s: tuple[float, ...]
    checkpoint_s: tuple[float, ...]
    optimizer_steps: int
    syncs: int
    events: int


# ---- how it went over time -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Span:
    """One thing that one lane did: a phase of the main thread, a stage of a worker, a piece of the device's work."""

    lane: str
    name: str
    start_s: float
    end_s: float
    step: int | None


@dataclass(frozen=True, slots=True)
class Join:
    """A batch on its way: made in `lane` at `made_s`, taken by the main thread at `taken_s` after it waited."""

    lane: str
    made_s: float
    taken_s: float
    wait_s: float
    step: int


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A few real steady steps, lane by lane. Times are from its start, which is `start_s` after the run's."""

    first_step: int
    steps: int
    start_s: float
    seconds: float
    lanes: tuple[str, ...]
    spans: tuple[Span, ...]
    joins: tuple[Join, ...]


@dataclass(frozen=True, slots=True)
class StepBin:
    """Steps that stand together at one place of a picture: just one, unless there are very many."""

    first: int
    count: int
    start_s: float
    low_s: float
    median_s: float
    high_s: float
    ready: float | None  # batches that waited to be taken, in the mean; near 0 means that the loader is too slow


@dataclass(frozen=True, slots=True)
class LongStep:
    """A step much longer than the others, and the part of it that grew most."""

    step: int
    seconds: float
    part: str


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """What one process, or one worker's successive processes, held at `times_s[i]`; pages it shares are counted."""

    name: str
    times_s: tuple[float, ...]
    sizes_bytes: tuple[int | None, ...]  # None while there was none


@dataclass(frozen=True, slots=True)
class Course:
    """A run over time, small enough to draw however long it was. Experiments are cut out of all times."""

    seconds: float
    steps: tuple[StepBin, ...]
    warmup_steps: int
    epoch_starts: tuple[int, ...]  # first steps of epochs after the first
    long_steps: tuple[LongStep, ...]
    memory: tuple[ProcessMemory, ...]
    memory_limit_bytes: int | None
    memory_free_bytes: int | None  # of the machine, when it was least
    busy_times_s: tuple[float, ...]
    busy_shares: tuple[float, ...]  # of the device, since the time before
    excerpt: Excerpt | None


# ---- the doctor ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Phase:
    """A named part of the main thread's wall time; the shares of a run's phases sum to one."""

    name: PhaseName
    seconds: float
    share: float


@dataclass(frozen=True, slots=True)
class Spread:
    """How a duration varies. A p99 far above the median means spikes, not a slow step."""

    median: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True)
class HotLine:
    """A line of the user's own code, the share of wall time spent below it, and the phase that was mostly in."""

    file: str
    line: int
    function: str
    share: float
    phase: PhaseName


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


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What `stoker doctor --json` writes; its keys are a contract."""

    wall_s: float
    steps: int
    epochs: int
    steps_per_epoch: int | None
    samples_per_s: float | None
    startup_s: float
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
    verdict: str | None
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
    probes: Probes = Probes()


# ---- tune ------------------------------------------------------------------------------------------------

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


# ---- a run while it goes on ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pulse:
    """What only the process itself knows, once a second. `busy_s` is the device's, since the process began."""

    time_ns: int
    device: str | None
    busy_s: float | None
    device_bytes: int | None
    graphs: int | None  # compiled by dynamo
    compile_s: float | None


@dataclass(frozen=True, slots=True)
class Odd:
    """A value that is no number, as the script itself read it."""

    time_ns: int
    value: str
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Piece:
    """What one process has written since the look before."""

    process: str
    pid: int
    start_ns: int | None = None
    rank: int | None = None
    worker: int | None = None
    loader: int | None = None  # the one it works for
    is_closed: bool = False
    times_ns: tuple[int, ...] = ()
    codes: tuple[int, ...] = ()
    loaders: tuple[LoaderFacts, ...] = ()
    epochs_planned: int | None = None
    pulses: tuple[Pulse, ...] = ()
    odd: tuple[Odd, ...] = ()
    trouble: tuple[str, ...] = ()  # errors that a loader raised instead of a batch


@dataclass(frozen=True, slots=True)
class News:
    """What a run has written since the look before. `quiet_s` is how long ago it wrote anything at all."""

    pieces: tuple[Piece, ...]
    meters: tuple[Meter, ...]
    is_over: bool
    exit_code: int | None
    end_ns: int | None
    quiet_s: float


@dataclass(frozen=True, slots=True)
class LiveEpoch:
    """One pass over the training loader. `seconds` and `wait_s` are without the first batch."""

    number: int
    batches: int
    length: int | None
    first_batch_s: float
    seconds: float
    wait_s: float
    whole_s: float | None  # to the start of the next, once that has begun
    is_over: bool


@dataclass(frozen=True, slots=True)
class LiveProcess:
    """One process of the run. `size_bytes` is resident memory, of a worker only what it does not share."""

    pid: int
    role: Literal["main", "rank", "worker", "other"]
    number: int | None  # of the rank or worker
    size_bytes: int
    cpu_share: float | None  # of one core, lately


@dataclass(frozen=True, slots=True)
class LiveMemory:
    """Host memory of the whole run. `grows_bytes_per_s` is None while it does not clearly grow."""

    used_bytes: int
    left_bytes: int | None
    limit_bytes: int | None
    grows_bytes_per_s: float | None
    full_in_s: float | None
    shm_used_bytes: int | None
    shm_limit_bytes: int | None


@dataclass(frozen=True, slots=True)
class LiveWorkers:
    """Worker processes of loaders. `gone` are those that ended without a farewell while the run went on."""

    alive: int
    wanted: int
    gone: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LiveDevice:
    """The accelerator, lately."""

    name: str
    busy_share: float | None
    used_bytes: int | None


@dataclass(frozen=True, slots=True)
class Remaining:
    """What is still to come, in seconds; None where a length is not known."""

    epoch_s: float | None
    run_s: float | None


@dataclass(frozen=True, slots=True)
class Moment:
    """A stretch of the run for a chart. `time_s` is its middle, since the run's start."""

    time_s: float
    steps_per_s: float | None
    wait_share: float | None
    device_busy_share: float | None
    used_bytes: int | None
    left_bytes: int | None


AlarmName = Literal[
    "memory-low", "shm-low", "worker-died", "stall", "recompiling", "loader-starving", "not-a-number", "run-lost"
]


@dataclass(frozen=True, slots=True)
class Alarm:
    """Something that should not wait until the run has ended. `since_s` is when it was first seen, after the start."""

    name: AlarmName
    evidence: tuple[Evidence, ...]
    since_s: float


LiveState = Literal["starting", "training", "ended", "lost"]


@dataclass(frozen=True, slots=True)
class Live:
    """A run at one moment. What is said to be lately is over the last half minute or less.

    `idle_s` is how long ago the loop last moved; `phase` is what its main thread does now, since `phase_s`.
    """

    run: str
    command: tuple[str, ...]
    started_s: float
    state: LiveState
    exit_code: int | None
    elapsed_s: float
    steps: int
    step_s: float | None
    wait_share: float | None
    phases: tuple[Phase, ...]  # lately
    phase: PhaseName | None
    phase_s: float
    idle_s: float | None
    ranks: int
    epochs: tuple[LiveEpoch, ...]
    epochs_planned: int | None
    remaining: Remaining | None
    memory: LiveMemory | None
    processes: tuple[LiveProcess, ...]
    workers: LiveWorkers
    device: LiveDevice | None
    graphs_lately: int | None
    compile_share: float | None
    odd: Odd | None
    odd_ago_s: float | None
    trouble: tuple[str, ...]
    history: tuple[Moment, ...]
    alarms: tuple[Alarm, ...] = ()
    past: tuple[Alarm, ...] = ()  # alarms that are over


# ---- two runs --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that was set, or was there, in one run and not in the other."""

    name: str
    a: Value
    b: Value


@dataclass(frozen=True, slots=True)
class Contrast:
    """One figure of both runs."""

    name: str
    a: float | None
    b: float | None
    unit: str


Outcomes = Literal["faster", "slower", "alike", "undecided"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Run B against run A. `speed` is the ratio of their rates in samples, above 1 if B is faster.

    One run each cannot tell what another process, hour or neighbour on the machine would have changed; a difference has
    to be larger than that.
    """

    a: str
    b: str
    outcome: Outcomes
    reason: str
    speed: Interval | None
    settings: tuple[Difference, ...]
    figures: tuple[Contrast, ...]
    phases: tuple[Contrast, ...]  # seconds of a mean steady step


# ---- predict ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A recorded run with other knobs, as simulated.

    `simulated_step_s` is the simulation of the run as it was: far from `measured_step_s`, and the rest is worth little.
    `ratio` is of rates in samples, above 1 is faster. `memory_bytes` is the peak of all processes.
    """

    knobs: Mapping[str, Value]
    measured_step_s: float
    simulated_step_s: float
    step_s: float
    ratio: float
    epoch_s: float | None
    memory_bytes: int


# ---- the simulated accelerator ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeviceProfile:
    """Device seconds of real steps, recorded once, replayed on the simulated accelerator.

    One entry per step in each list, so that a replay can draw whole steps and keep their correlation.
    """

    device: str
    batch_size: int
    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    optimizer_s: tuple[float, ...]
    copy_bytes_per_s: float | None


# ---- JSON ------------------------------------------------------------------------------------------------

R = TypeVar("R")


def encode(value: Any) -> Any:
    """A record as what `json.dumps` takes."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {key: encode(getattr(value, name)) for name, key, _ in _layout(type(value))}
    if isinstance(value, Mapping):
        return {key: encode(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [encode(item) for item in value]
    return value


def decode(kind: type[R], data: Any) -> R:
    """The record of type `kind` that `encode` made `data` from; raises ValueError naming the wrong field."""
    return typing.cast("R", _decode(kind, data, kind.__name__))


@cache
def _layout(kind: type) -> tuple[tuple[str, str, Any], ...]:
    """Name, JSON key and type of each field of a record."""
    hints = typing.get_type_hints(kind)
    fields = dataclasses.fields(kind)
    return tuple((f.name, f.metadata.get("key", f.name), hints[f.name]) for f in fields)


def _decode(kind: Any, data: Any, where: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return _decode_record(typing.cast("type", kind), data, where)
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return _decode_union(args, data, where)
    if origin is Literal:
        return _checked(data in args, data, f"one of {', '.join(map(str, args))}", where)
    if origin is tuple:
        _checked(isinstance(data, list), data, "a list", where)
        return tuple(_decode(args[0], item, f"{where}[{i}]") for i, item in enumerate(data))
    if origin is Mapping:
        _checked(isinstance(data, dict), data, "an object", where)
        return {key: _decode(args[1], item, f"{where}.{key}") for key, item in data.items()}
    if kind is float:  # JSON does not tell 1.0 from 1
        return float(_checked(_is_plain(data, (int, float)), data, "a number", where))
    return _checked(_is_plain(data, (kind,)), data, kind.__name__, where)


def _decode_record(kind: type, data: Any, where: str) -> Any:
    _checked(isinstance(data, dict), data, "an object", where)
    layout = _layout(kind)
    missing = [key for _, key, _ in layout if key not in data]
    if missing:
        raise ValueError(f"{where} lacks {', '.join(missing)}")
    return kind(**{name: _decode(hint, data[key], f"{where}.{key}") for name, key, hint in layout})


def _decode_union(args: tuple[Any, ...], data: Any, where: str) -> Any:
    if data is None and type(None) in args:
        return None
    exact = [arg for arg in args if isinstance(arg, type) and type(data) is arg]
    if exact:
        return data
    others = [arg for arg in args if arg is not type(None)]
    for arg in others:
        try:
            return _decode(arg, data, where)
        except ValueError:
            continue
    return _checked(False, data, " or ".join(str(arg) for arg in args), where)


def _is_plain(data: Any, kinds: tuple[type, ...]) -> bool:
    """True if data is of one of these kinds; a bool is not an int here."""
    return isinstance(data, kinds) and (bool in kinds or not isinstance(data, bool))


def _checked(ok: bool, data: Any, expected: str, where: str) -> Any:
    if not ok:
        raise ValueError(f"{where} is {data!r}; expected {expected}")
    return data
