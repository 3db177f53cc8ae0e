"""Logging: what a script writes down, draws or counts beside its training."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator

from stoker.attribute.timeline import decode_events
from stoker.diagnose.causes import GAIN, finding
from stoker.diagnose.facts import Facts
from stoker.records.diagnosis import Finding
from stoker.records.observed import Kind, Line

LOGGERS = (
    *("logging.", "tqdm.", "wandb.", "mlflow.", "tensorboard.", "torch.utils.tensorboard.", "loguru."),
    *("torchmetrics.", "torcheval.", "sklearn.metrics."),
)
"""Modules whose time is logging, also where no hook stands: what counts is what is written down."""
LOGS, PREPARES = 0.15, 0.02
"""A line that is inside a logger for this share of its time logs; one that calls nothing of torch's, for less: the rest
is what it makes to be logged."""
ASIDE = 0.6
"""A line that is seen between a step and the next batch for this share of its time has no part in training."""
PHASES, GAP = ("logging", "other"), "data_wait"
"""Where the time of such lines counts, and where too if no loader says what of it is data; while garbage is collected,
it is the collector's."""
_TRAINING = {Kind.ITER, Kind.FORWARD, Kind.BACKWARD, Kind.OPTIMIZER}
MODULE = "<module>"
_NAMED = {Kind.SYNC, Kind.SAVE, Kind.COPY}


def logging_stall(facts: Facts) -> Finding | None:
    """Time in loggers, prints and progress bars, and in what is done after a step that no step needs."""
    loop_s = facts.named.wall_s - facts.named.startup_s
    lines = beside_steps(facts)
    on_lines_s = facts.sampled_s(lambda line: (line.file, line.line) in lines)
    phases = PHASES if facts.facts is not None else (*PHASES, GAP)
    unnamed_s = sum(facts.seconds(phase) for phase in phases)
    logged_s = max(facts.seconds("logging"), min(on_lines_s, unnamed_s))
    share = min(logged_s / loop_s, 1.0) if loop_s > 0 else 0.0
    in_steps_s = sum(facts.step_part(phase) for phase in phases) * logged_s / max(unnamed_s, 1e-9)
    gain = facts.host_gain(max(share * facts.wall_step_s, in_steps_s))
    if gain < GAIN or share < 1 - 1 / GAIN:
        return None
    return finding(
        "logging-stall",
        ("in loggers", facts.seconds("logging"), "s"),
        ("in them, and in lines that come after a step and have no part in the next", logged_s, "s"),
        ("of the loop", share, "share"),
        gain=gain,
        off=facts.off("step"),
        place=_place(facts, lines),
    )


def beside_steps(facts: Facts) -> set[tuple[str, int]]:
    """The lines that log, or that come after a step and have no part in the next."""
    return log_lines(facts) | _aside(facts)


def logs(line: Line) -> bool:
    """True if this place is inside a logger."""
    return line.leaf.startswith(LOGGERS)


def log_lines(facts: Facts) -> set[tuple[str, int]]:
    """The lines that log: a good part of their time is inside a logger, or prepares what goes there."""
    lines = [facts.track.lines[i] for i in facts.track.sample_lines]
    seen = Counter((line.file, line.line) for line in lines)
    inside = Counter((line.file, line.line) for line in lines if logs(line))
    computes = {(line.file, line.line) for line in lines if line.leaf.startswith("torch.")}
    hot = {(line.file, line.line) for line in facts.named.hot_lines if line.phase == "logging"}
    least = {place: LOGS if place in computes else PREPARES for place in inside}
    return hot | {place for place, count in inside.items() if count >= least[place] * seen[place] and count > 1}


def _place(facts: Facts, lines: set[tuple[str, int]]) -> str | None:
    hot = next((line for line in facts.named.hot_lines if (line.file, line.line) in lines), None)
    return f"{hot.file}:{hot.line} {hot.function}" if hot else None


# ---- figures, metrics and files of the script's own --------------------------------------------------------


def _aside(facts: Facts) -> set[tuple[str, int]]:
    """Lines that are seen after an optimizer's step and before the next batch is asked for, and start no operation.

    Where no loader is asked, those that stand below the step in the script. In a function that logs and does not train,
    operations too: what they come to is written down.
    """
    inspected = facts.probes.inspection
    spans = list(_after_steps(facts))
    starts = [start for start, _ in spans]
    places = set(inspected.places) if inspected else set()
    saving, writing = _saving(facts), _writing(facts)
    lines, seen, aside = facts.track.lines, Counter[tuple[str, int]](), Counter[tuple[str, int]]()
    for time_ns, number in zip(facts.track.sample_times_ns, facts.track.sample_lines, strict=True):
        line = lines[number]
        at = bisect_right(starts, time_ns) - 1
        seen[line.file, line.line] += 1
        between = at >= 0 and time_ns < spans[at][1]
        function = line.file, line.function
        if function in saving or not (between or (line.after_step and facts.facts is None)):
            continue
        if function in writing or _is_beside(line, places):
            aside[line.file, line.line] += 1
    return {place for place, count in aside.items() if count >= ASIDE * seen[place] and count > 1}


def _saving(facts: Facts) -> set[tuple[str, str]]:
    """The functions that save: what else they do, renaming say, is a part of it."""
    hot = [line for line in facts.named.hot_lines if line.phase == "checkpoint"]
    return {(line.file, line.function) for line in hot if line.function != MODULE}


def _writing(facts: Facts) -> set[tuple[str, str]]:
    """The functions that log, and have no part in training."""
    hot = [line for line in facts.named.hot_lines if line.function != MODULE]
    trains = {(line.file, line.function) for line in hot if line.phase not in PHASES}
    return {(line.file, line.function) for line in hot if line.phase == "logging"} - trains


def _is_beside(line: Line, places: set[str]) -> bool:
    """True inside a library that is not torch, or in Python of the user's own; a tensor's method has no frame."""
    if line.leaf.startswith("torch."):
        return False
    is_own = line.leaf.endswith(f".{line.function}")
    return not is_own or bool(places and f"{line.file}:{line.line}" not in places)


def _after_steps(facts: Facts) -> Iterator[tuple[int, int]]:
    """From an optimizer's step to the next request for a batch, without what has a name of its own."""
    start, pieces = 0, list[tuple[int, int]]()
    for event in decode_events(facts.track):
        if event.kind is Kind.OPTIMIZER and event.ends:
            start, pieces = event.time_ns, []
        elif not start:
            continue
        elif event.kind is Kind.NEXT and not event.ends:
            yield from (*pieces, (start, event.time_ns))
            start = 0
        elif event.kind in _TRAINING and not event.ends:
            start = 0
        elif event.kind in _NAMED:
            if event.ends:
                start = event.time_ns
            else:
                pieces.append((start, event.time_ns))
