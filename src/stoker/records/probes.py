"""What experiments inside a run found."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ordering:
    """What the sampler cost in one process: seconds inside it, and the batches it ordered."""

    seconds: float
    batches: int


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
    all_cpu_s: float | None = None  # of all threads of the process


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
    """How one batch was made, function by function. `text_s` is the time in functions from text to integers, `same_s`
    that in functions which came to the same when the batch was made a second time, though it may have been another.
    """

    samples: int
    seconds: float
    calls: int
    text_s: float | None
    text_place: str | None
    functions: tuple[Call, ...]
    files: tuple[str, ...] = ()  # some that were read
    same_s: float | None = None
    same_place: str | None = None


@dataclass(frozen=True, slots=True)
class LineOps:
    """Operations that one line of the user's code started in one step, most of them in one call of its function."""

    file: str
    line: int
    function: str
    ops: int
    in_one_call: int
    picks: int  # of these, how many pick out a part of a tensor
    repeats: int = 0  # how often one and the same weight was used in one call
    entries: int | None = None  # how often one call went into torch for them: a GRU's own loop is inside torch


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
    places: tuple[str, ...] = ()  # of all lines that started an operation: file:line
    moved_bytes: float | None = None  # of all tensors that operations took and made; a view moves nothing
    half_ratio: float | None = None  # what the device itself would gain in half precision, where it could be asked
    batch_share: float | None = None  # bytes of its batch ÷ those of the batches whose steps were timed, on average
    text_s: float | None = None  # in calls of the loop itself that turned text into integers …
    text_place: str | None = None  # … and where


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
    fewer: tuple[Replay, ...] = ()  # the same with no more threads than cores, where torch has more
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
    threads: int | None = None  # of torch, in the main process
    indices_in_sequence: float | None = None  # share of neighbouring indices in a batch that follow each other
