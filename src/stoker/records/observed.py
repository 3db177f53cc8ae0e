"""What a run's processes wrote down, and the machine they ran on."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal

from stoker.records.probes import Cold, Making, Probes

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


class Kind(IntEnum):
    """What a span of the main thread's time is. An event's code is `kind << 1 | ended`, its argument above `ARG`."""

    ITER = 1  # a loader's __iter__: workers start here; argument: the loader
    NEXT = 2  # waiting for a batch; argument: the loader
    EXHAUSTED = 3  # the end of a NEXT that brought no batch; argument: the loader
    COPY = 4  # host to device
    FORWARD = 5  # outermost call of a module that has parameters; argument: 1 in eval mode
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
    DOZE = 18  # steps that were timed as a whole, until they are filled in; argument: after how many they repeat


TRAINING = {Kind.BACKWARD, Kind.OPTIMIZER}
"""What only a process does that trains."""
ARG = 8
"""The bit from which an event's code holds its argument."""
KIND = (1 << ARG - 1) - 1
"""What is left of a code, without its lowest bit, is its kind."""
SMALLEST_TIME = 1 << 32
"""A code is below this and a time above, so that a pair torn by a signal or by the end is recognised."""

OWN = "<stoker>"
"""The file of a line that is Stoker's own, where nothing else was on the stack."""

DEVICE_WORK = ("copy", "forward", "backward", "optimizer", "other")
"""What a piece of the device's work can be."""


@dataclass(frozen=True, slots=True)
class Line:
    """A place the sampler saw: the user's line, and the innermost function below it."""

    file: str
    line: int
    function: str
    leaf: str
    after_step: bool = False
    """It, or the line that it was called from, stands below the optimizer's step in the same function."""


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
    stream: bool = False  # an IterableDataset: each worker would run all of it, unless it takes a part by itself


@dataclass(frozen=True, slots=True)
class Cut:
    """An epoch that was let end early: `batches`, and `aside` more inside experiments, were delivered of `length`."""

    loader: int
    batches: int
    length: int | None
    time_ns: int
    aside: int = 0


@dataclass(frozen=True, slots=True)
class NoBatch:
    """An error that a loader gave instead of a batch, and what there was of /dev/shm right after."""

    text: str
    shm_bytes: int | None = None
    shm_free: int | None = None


@dataclass(frozen=True, slots=True)
class Collect:
    """Where a script asks for garbage to be collected, and how often at least."""

    place: str
    calls: int


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
    probes: Probes = field(default_factory=Probes)
    device_times_ns: tuple[int, ...] = ()
    device_step_us: tuple[int, ...] = ()
    """When a step's last work was queued, and how long its work lay on the device, from events read later."""
    made: tuple[str, ...] = ()
    """New files that the script wrote and left: the first ones."""
    made_count: int = 0  # all of them
    losses: tuple[float | None, ...] = ()  # of the first backwards, where asked for; None is not finite
    device_total_bytes: int | None = None
    device_starts_ns: tuple[int, ...] = ()  # of each piece of work on the device's own timeline, where it has one
    device_ends_ns: tuple[int, ...] = ()
    device_work: tuple[int, ...] = ()  # places in DEVICE_WORK
    batch_arrays: tuple[tuple[int, int], ...] = ()  # a loader, and the arrays in its first batch
    batch_bytes: tuple[tuple[int, int], ...] = ()  # the same for their bytes
    no_batches: tuple[NoBatch, ...] = ()
    collects: tuple[Collect, ...] = ()
    filled: int = 0  # events of steps that were timed as a whole: put there when they were read
    fork_s: float | None = None  # what it takes to fork the process, where no worker was started
    steps_planned: int | None = None  # where the script's loop counts these; `epochs_planned` is rounded up then


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
    files: tuple[str, ...] = ()  # some of those that it read, and addresses that it asked for


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
    busy_s: float | None = None  # of all cores and all programs, since the machine's start
    stolen_s: float | None = None  # that somebody wanted and the host of this virtual machine gave to others


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
