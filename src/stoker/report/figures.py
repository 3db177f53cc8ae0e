"""Which pictures a report has, each with its title, what it says in words, and its numbers as a table."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from stoker.records.attributed import Course, Excerpt
from stoker.records.diagnosis import Diagnosis
from stoker.records.tuning import Trial, Tuning
from stoker.report import units

MOST_ROWS = 40
"""Of a table beside a picture; a longer one is thinned."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One picture: `chart` is Vega-Lite as plain data. `rows` say the same to those who cannot see it."""

    key: str
    title: str
    caption: str
    chart: dict[str, Any]
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    zooms: bool = False


def of_run(diagnosis: Diagnosis, course: Course | None) -> Iterator[Figure]:
    """The pictures of one run, as far as what they show was measured."""
    if diagnosis.step_phases:
        yield _step(diagnosis)
    if course is not None and course.excerpt is not None:
        yield _timeline(course.excerpt)
    if course is not None and course.steps:
        yield _steps(course)
    if course is not None:
        yield from _feeding(course)
    if any(worker.stages.collate is not None for worker in diagnosis.workers):
        yield _workers(diagnosis)
    if diagnosis.hot_lines:
        yield _lines(diagnosis)


def of_tuning(tuning: Tuning) -> Iterator[Figure]:
    """The pictures of a tuning."""
    from stoker.report import charts

    if any(trial.ratio is not None for trial in tuning.trials):
        yield Figure(
            "trials",
            "Each trial against the noise",
            "Rate of the candidate over the rate of your own configuration, with its 95 % interval. Inside the grey "
            "band it is what the reference reaches against itself: noise. A diamond is what had been predicted.",
            charts.trials(tuning).to_dict(),
            ("trial", "decision", "ratio", "95 % interval", "predicted"),
            tuple(_numbers(trial) for trial in tuning.trials),
        )
    both = [one for one in tuning.trials if one.predicted_ratio is not None and one.ratio is not None]
    if both:
        yield Figure(
            "predictions",
            "Predicted against measured",
            "On the dashed line the prediction was right; above it the change did better than predicted.",
            charts.predictions(tuning).to_dict(),
            ("trial", "predicted", "measured"),
            tuple((f"{one.knob} → {one.after}", _times(one.predicted_ratio), _times(one.ratio)) for one in both),
        )


def _times(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}×"


def _numbers(trial: Trial) -> tuple[str, ...]:
    low, high = trial.ci_low, trial.ci_high
    interval = "–" if low is None or high is None else f"{low:.2f} to {high:.2f}"
    change = f"{trial.knob} → {trial.after}"
    return change, trial.decision, _times(trial.ratio), interval, _times(trial.predicted_ratio)


def thinned(rows: Sequence[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    """At most `MOST_ROWS` of them, evenly."""
    every = max(-(-len(rows) // MOST_ROWS), 1)
    return tuple(rows[::every])


# ---- one run ---------------------------------------------------------------------------------------------


def _step(diagnosis: Diagnosis) -> Figure:
    from stoker.report import charts

    mean = units.seconds(diagnosis.mean_step_s)
    lines = diagnosis.ceilings.loader_samples_per_s or diagnosis.ceilings.compute_samples_per_s
    meaning = (
        " The dashed lines are the ceilings: what one step would take if the other half were free." if lines else ""
    )
    return Figure(
        "step",
        "Where a step's time goes",
        f"A mean steady step takes {mean} on the main thread.{meaning}",
        charts.step(diagnosis).to_dict(),
        ("phase", "time", "share of a step"),
        tuple((one.name, units.seconds(one.seconds), units.share(one.share)) for one in diagnosis.step_phases),
    )


def _timeline(excerpt: Excerpt) -> Figure:
    from stoker.report import charts
    from stoker.report.charts.timeline import shown_lanes

    hidden = len(excerpt.lanes) - len(shown_lanes(excerpt))
    more = f" {hidden} more workers are not drawn." if hidden else ""
    joined = ""
    if excerpt.joins:
        joined = (
            " A line joins the batch that a worker made to the step that took it: strong where it was waited for, "
            "faint where it was ready before."
        )
    device = "" if "device" in excerpt.lanes else " This device keeps no timeline of its own."
    last = excerpt.first_step + excerpt.steps - 1
    return Figure(
        "timeline",
        f"{excerpt.steps} real steps",
        f"Steps {excerpt.first_step} to {last}, as typical as any, {units.seconds(excerpt.start_s)} into the run."
        f"{joined}{device}{more} Drag to move; shift and wheel, or the buttons, to zoom.",
        charts.timeline(excerpt).to_dict(),
        ("step", "batch made by", "waited for it"),
        thinned([(str(join.step), join.lane, units.seconds(join.wait_s)) for join in excerpt.joins]),
        zooms=True,
    )


def _steps(course: Course) -> Figure:
    from stoker.report import charts

    many = (
        " Each point stands for several steps; the band is their shortest and longest."
        if course.steps[0].count > 1
        else ""
    )
    shade = f" The first {course.warmup_steps} are warm-up." if course.warmup_steps else ""
    spikes = " Spikes are named after the part that grew." if course.long_steps else ""
    return Figure(
        "steps",
        "Step time over the run",
        f"Without validation, checkpoints and first batches.{shade}{spikes}{many}",
        charts.steps(course).to_dict(),
        ("step", "median", "longest"),
        thinned([(str(one.first), units.seconds(one.median_s), units.seconds(one.high_s)) for one in course.steps]),
    )


def _feeding(course: Course) -> Iterator[Figure]:
    """Is the device fed? Batches ready, device busy, and the memory that it takes."""
    from stoker.report import charts

    waiting = [(str(one.first), f"{one.ready:.3g}") for one in course.steps if one.ready is not None]
    if waiting:
        yield Figure(
            "ready",
            "Batches ready",
            "How many batches waited when a step asked for one. At 0 the main thread has to wait for the loader.",
            charts.ready(course).to_dict(),
            ("step", "ready"),
            thinned(waiting),
        )
    if course.busy_shares:
        rows = [(f"{at_s:.1f} s", units.share(share)) for at_s, share in _pairs(course)]
        yield Figure(
            "busy",
            "Device busy",
            "Low means that the device waits for the host.",
            charts.busy(course).to_dict(),
            ("until", "busy"),
            thinned(rows),
        )
    if course.memory:
        yield _memory(course)


def _pairs(course: Course) -> Iterator[tuple[float, float]]:
    return zip(course.busy_times_s, course.busy_shares, strict=True)


def _memory(course: Course) -> Figure:
    from stoker.report import charts

    held = course.memory
    rows = [
        (f"{at_s:.1f} s", *(units.size(one.sizes_bytes[i]) for one in held)) for i, at_s in enumerate(held[0].times_s)
    ]
    limit = f" The machine has {units.size(course.memory_limit_bytes)}" if course.memory_limit_bytes else ""
    free = f", of which at least {units.size(course.memory_free_bytes)} were free" if course.memory_free_bytes else ""
    return Figure(
        "memory",
        "Memory of each process",
        f"Resident; pages that processes share count in each.{limit}{free if limit else ''}{'.' if limit else ''}",
        charts.memory(course).to_dict(),
        ("at", *(one.name for one in held)),
        thinned(rows),
    )


def _workers(diagnosis: Diagnosis) -> Figure:
    from stoker.report import charts

    return Figure(
        "workers",
        "What workers do",
        "Seconds in each stage of making batches, over the whole run; read is waiting for files and the kernel.",
        charts.workers(diagnosis).to_dict(),
        ("worker", "read", "transform", "collate", "send", "CPU", "most memory"),
        tuple(
            (
                str(one.pid),
                *(units.seconds(getattr(one.stages, stage)) for stage in ("read", "transform", "collate", "send")),
                units.seconds(one.cpu_s),
                units.size(one.rss_peak_bytes),
            )
            for one in diagnosis.workers
        ),
    )


def _lines(diagnosis: Diagnosis) -> Figure:
    from stoker.report import charts

    return Figure(
        "lines",
        "Your lines",
        "Share of wall time spent below each line of your own code.",
        charts.lines(diagnosis).to_dict(),
        ("line", "function", "phase", "share"),
        tuple(
            (f"{one.file}:{one.line}", one.function, one.phase, units.share(one.share)) for one in diagnosis.hot_lines
        ),
    )
