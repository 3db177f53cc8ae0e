"""The page of one run: verdict, pictures, findings with evidence, budgets, configuration and hardware."""

import shlex
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from stoker.records.attributed import Course
from stoker.records.diagnosis import Diagnosis
from stoker.report import figures, findings, units
from stoker.report.cards import card
from stoker.report.page import Section, Table, Top, render
from stoker.report.terminal import headline

IN_MERITS = ("verdict", "gain", "epoch", "run")


def html(
    diagnosis: Diagnosis,
    course: Course | None,
    run: str,
    command: Sequence[str],
    started_s: float | None = None,
    kept: Path | None = None,
) -> str:
    """The page of one run. `kept` is a directory in which the drawing library may be kept for the next page."""
    when = f"{datetime.fromtimestamp(started_s, UTC):%Y-%m-%d %H:%M} UTC · " if started_s else ""
    return render(top(diagnosis, run, command), list(sections(diagnosis, course)), f"{when}stoker doctor · {run}", kept)


def top(diagnosis: Diagnosis, run: str, command: Sequence[str]) -> Top:
    """What is seen first."""
    cause, meaning = _verdict(diagnosis)
    return Top(
        title=f"stoker doctor · {run}",
        command=shlex.join(command),
        cause=cause,
        meaning=meaning,
        healthy=diagnosis.verdict == "healthy",
        merits=tuple(_merits(diagnosis)),
        said=tuple((name, text) for name, text in headline(diagnosis) if name not in IN_MERITS),
    )


def _verdict(diagnosis: Diagnosis) -> tuple[str, str]:
    if diagnosis.verdict is not None:
        return diagnosis.verdict, f"{findings.meaning(diagnosis.verdict)}."
    if diagnosis.bound is not None:
        share = units.share(diagnosis.bound.share)
        return f"bound by {diagnosis.bound.part}", f"It takes {share} of a steady step. No cause was looked for."
    return "not judged", "No steady steps were seen."


def _merits(diagnosis: Diagnosis) -> Iterator[tuple[str, str, str]]:
    first = diagnosis.findings[0] if diagnosis.findings else None
    gain = first.gain_max if first else diagnosis.bound.gain_max if diagnosis.bound and not diagnosis.verdict else None
    if gain is not None:
        then = f"then bound by {first.then}" if first and first.then else "if that were gone"
        yield "at most", f"{gain:.2f}× as fast", then
    prediction = diagnosis.prediction
    if prediction is not None:
        low, high = units.seconds(prediction.low_s), units.seconds(prediction.high_s)
        yield "predicted epoch", units.seconds(prediction.epoch_s), f"95 %: {low} to {high}"
        if prediction.run_s is not None:
            yield "predicted run", units.seconds(prediction.run_s), ""
    if diagnosis.steady_step_s is not None:
        spread = diagnosis.steady_step_s
        yield "steady step", units.seconds(spread.median), f"p95 {units.seconds(spread.p95)}"
    if diagnosis.samples_per_s is not None:
        rate, _, unit = units.rate(diagnosis.samples_per_s, "samples").partition(" ")
        yield "now", rate, unit
    if diagnosis.device.busy_share is not None:
        yield "device busy", units.share(diagnosis.device.busy_share), diagnosis.device.name


def sections(diagnosis: Diagnosis, course: Course | None) -> Iterator[Section]:
    """Everything below the verdict."""
    drawn = tuple(figures.of_run(diagnosis, course))
    if drawn:
        yield Section("pictures", "Where the time goes", figures=drawn)
    if diagnosis.findings:
        cards = tuple(card(finding) for finding in diagnosis.findings)
        yield Section("findings", "Findings", "Largest possible gain first.", findings=cards)
    if diagnosis.steps:
        yield Section("all", "All of the run", tables=(_phases(diagnosis), *_epoch(diagnosis)))
    budgets = tuple(_budgets(diagnosis))
    if budgets:
        yield Section("budgets", "Budgets", tables=budgets)
    yield Section("setup", "Configuration and hardware", tables=tuple(_setup(diagnosis)))
    if diagnosis.notes:
        yield Section("notes", "Notes", notes=diagnosis.notes)


# ---- tables ----------------------------------------------------------------------------------------------


def _phases(diagnosis: Diagnosis) -> Table:
    rows = tuple(
        (one.name, units.seconds(one.seconds), units.share(one.share)) for one in diagnosis.phases if one.seconds
    )
    left = f"Not accounted for: {units.share(diagnosis.unaccounted_share)}."
    own = (
        f" Stoker's own cost: {units.share(diagnosis.overhead_share)}." if diagnosis.overhead_share is not None else ""
    )
    return Table(f"{units.seconds(diagnosis.wall_s)} of wall time", ("phase", "time", "share"), rows, note=left + own)


def _epoch(diagnosis: Diagnosis) -> Iterator[Table]:
    if diagnosis.epoch_parts:
        rows = tuple((name.replace("_", " "), units.seconds(value)) for name, value in diagnosis.epoch_parts.items())
        yield Table("A full epoch, as predicted", ("part", "time"), rows)


def _budgets(diagnosis: Diagnosis) -> Iterator[Table]:
    if diagnosis.worker_budget:
        rows = tuple(
            (
                str(one.workers),
                units.size(one.needed_bytes),
                units.size(one.free_bytes),
                "fits" if one.fits else "too much",
            )
            for one in diagnosis.worker_budget
        )
        yield Table("Memory by number of workers", ("workers", "would take", "of free", "verdict"), rows)
    if diagnosis.probes.windows:
        tried = tuple(findings.experiments(diagnosis))
        yield Table("Experiments", ("experiment", "planned", "took"), tried, note="Cut out of all times above.")


def _setup(diagnosis: Diagnosis) -> Iterator[Table]:
    if diagnosis.loaders:
        heads = ("loader", "role", "workers", "prefetch", "batch", "pinned", "persistent", "shuffled", "made at")
        rows = tuple(
            (
                f"{one.facts.loader} {one.facts.dataset}",
                one.role,
                str(one.facts.num_workers),
                _or_dash(one.facts.prefetch_factor),
                _or_dash(one.facts.batch_size),
                *(_yes(flag) for flag in (one.facts.pin_memory, one.facts.persistent_workers, one.facts.shuffled)),
                f"{findings.short(one.facts.file)}:{one.facts.line}" if one.facts.file else "–",
            )
            for one in diagnosis.loaders
        )
        yield Table("Loaders, as the script configured them", heads, rows)
    yield Table("Machine", (), tuple(_machine(diagnosis)), words=True)


def _machine(diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    use, memory = diagnosis.machine, diagnosis.memory
    yield "cores", f"{use.cores}" + (f", of which the quota grants {use.quota_cores:g}" if use.quota_cores else "")
    yield "cores busy", units.share(use.cpu_share)
    yield "memory", f"{units.size(use.ram_bytes)}, the run's private peak {units.size(memory.host_peak_bytes)}"
    yield "shared memory, peak", units.size(memory.shm_peak_bytes)
    yield "disk", f"{_rate(use.disk_read_bytes_per_s)} read, {_rate(use.disk_write_bytes_per_s)} written"
    yield "network", f"{_rate(use.net_received_bytes_per_s)} received, {_rate(use.net_sent_bytes_per_s)} sent"
    if use.throttled_s:
        yield "throttled by the quota", units.seconds(use.throttled_s)
    if use.stolen_share is not None:
        yield "core time that the host gave to others", units.share(use.stolen_share)
    yield "device", diagnosis.device.name
    if memory.device_peak_bytes is not None:
        yield "device memory, peak", units.size(memory.device_peak_bytes)


def _rate(value: float | None) -> str:
    return "–" if value is None else f"{units.size(value)}/s"


def _or_dash(value: int | None) -> str:
    return "–" if value is None else str(value)


def _yes(flag: bool) -> str:
    return "yes" if flag else "no"
