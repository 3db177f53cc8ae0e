"""A run while it goes on."""

from dataclasses import dataclass
from typing import Literal

from stoker.records.attributed import Phase
from stoker.records.diagnosis import Evidence
from stoker.records.observed import LoaderFacts, Meter, PhaseName


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
