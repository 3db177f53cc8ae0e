"""What an observation amounts to, and how it went over time."""

from collections.abc import Mapping
from dataclasses import dataclass

from stoker.records.observed import LoaderFacts, PhaseName


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
