"""The verdict box and its tables, for people."""

from collections.abc import Iterator
from pathlib import Path

from rich.box import ROUNDED, SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from stoker.attribute.summary import counted
from stoker.records.attributed import LoaderWait, Phase
from stoker.records.diagnosis import Diagnosis
from stoker.report import findings, units

BAR = 24
SMALLEST_SHARE = 0.0005
MOST_WORKERS = 8
MOST_LINES = 6


def show(diagnosis: Diagnosis, run: str, console: Console) -> None:
    """Print the report of one run."""
    console.print(Group(*_parts(diagnosis, run)))


def show_verdict(diagnosis: Diagnosis, run: str, console: Console) -> None:
    """Print what a run that ended before there was anything to measure suffers from."""
    console.print(_box(diagnosis, run))
    if any(finding.candidates for finding in diagnosis.findings):
        console.print(_candidates(diagnosis))
    show_notes(diagnosis, console)


def show_notes(diagnosis: Diagnosis, console: Console) -> None:
    """Print only what must be known about how the run was observed."""
    for note in diagnosis.notes:
        console.print(_note(note))


def _note(note: str) -> Text:
    return Text(f"· {note}", style="dim")


def _parts(diagnosis: Diagnosis, run: str) -> Iterator[RenderableType]:
    yield _box(diagnosis, run)
    if any(finding.candidates for finding in diagnosis.findings):
        yield _candidates(diagnosis)
    yield _phases(diagnosis)
    if diagnosis.step_phases:
        yield _step(diagnosis)
    if diagnosis.loaders:
        yield _loaders(diagnosis)
    if diagnosis.workers:
        yield _workers(diagnosis)
    if diagnosis.hot_lines:
        yield _lines(diagnosis)
    if diagnosis.worker_budget:
        yield _budget(diagnosis)
    if diagnosis.probes.windows:
        yield _experiments(diagnosis)
    yield Text.from_markup(_machine(diagnosis))
    for note in diagnosis.notes:
        yield _note(note)


# ---- the box ---------------------------------------------------------------------------------------------


def _box(diagnosis: Diagnosis, run: str) -> Panel:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column()
    for name, text in headline(diagnosis):
        grid.add_row(name, text)
    return Panel(grid, title=f"stoker doctor · {run}", title_align="left", box=ROUNDED, expand=False, padding=(0, 1))


def headline(diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    """The box, line by line: what bounds the run, why, what to do, what it could bring, how long it will take."""
    if diagnosis.verdict is not None:
        yield from findings.headline(diagnosis)
    else:
        yield from _measured(diagnosis)
    yield "epoch", _epoch(diagnosis)
    prediction = diagnosis.prediction
    if prediction is not None and prediction.run_s is not None:
        yield "run", units.seconds(prediction.run_s)
    yield "seen", _seen(diagnosis)


def _measured(diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    bound, spread = diagnosis.bound, diagnosis.steady_step_s
    if bound is None or spread is None:
        few = f"{counted(diagnosis.steps, 'step')} {'is' if diagnosis.steps == 1 else 'are'} too few"
        yield "verdict", f"not judged: {'no steady steps were seen' if spread is None else few}"
        return
    yield "bound by", f"{bound.part}: {units.share(bound.share)} of a steady step"
    yield "why", f"{units.seconds(bound.seconds)} of {units.seconds(diagnosis.mean_step_s)} a step{_where(diagnosis)}"
    if bound.gain_max is not None:
        yield "at most", f"{bound.gain_max:.2f}× faster if that vanished"


def _where(diagnosis: Diagnosis) -> str:
    """The line behind the largest part, if it is one of the user's."""
    names = {"waiting for data": "data_wait", "the script's own code": "other", "waiting for the device": "sync"}
    wanted = names.get(diagnosis.bound.part) if diagnosis.bound else None
    line = next((line for line in diagnosis.hot_lines if line.phase == wanted), None)
    return f", mostly at {_place(line.file, line.line)} in {line.function}" if line else ""


def _epoch(diagnosis: Diagnosis) -> str:
    prediction = diagnosis.prediction
    if prediction is None:
        return "no forecast: the length of an epoch is not known" if diagnosis.steps else "no forecast"
    low, high = units.seconds(prediction.low_s), units.seconds(prediction.high_s)
    return f"{units.seconds(prediction.epoch_s)} for a full one (95 %: {low} to {high})"


def _seen(diagnosis: Diagnosis) -> str:
    steps = f"{counted(diagnosis.steps, 'step')} in {counted(diagnosis.epochs, 'epoch')}"
    parts = [steps, f"{units.seconds(diagnosis.wall_s)} of wall time"]
    if diagnosis.steady_step_s is not None:
        spread = diagnosis.steady_step_s
        tail = f"(p95 {units.seconds(spread.p95)}, p99 {units.seconds(spread.p99)})"
        parts.append(f"steady step {units.seconds(spread.median)} {tail}")
    if diagnosis.warmup_steps:
        parts.append(f"warm-up {counted(diagnosis.warmup_steps, 'step')}")
    if diagnosis.overhead_share is not None:
        parts.append(f"Stoker's own cost {units.share(diagnosis.overhead_share)}")
    return ", ".join(parts)


# ---- the tables ------------------------------------------------------------------------------------------


def _table(*columns: str) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right", overflow="fold")
    return table


def _candidates(diagnosis: Diagnosis) -> Table:
    """One block each: what, at which line, and below it what to write; a line to copy is never broken by a column."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("what to do", overflow="fold")
    for place, (cause, one) in enumerate(findings.candidates(diagnosis), 1):
        changes = "may change results" if one.changes_results else "same results"
        text = Text(findings.short(one.text), style="bold")
        text.append(f"\nfor {cause} · risk {one.risk} · {changes} · {one.horizon}", style="dim")
        if one.hint:
            text.append("\n" + "\n".join(f"    {line}" for line in findings.short(one.hint).splitlines()), style="")
        table.add_row(str(place), text)
    return table


def _budget(diagnosis: Diagnosis) -> Table:
    table = _table("workers", "would take", "of free", "")
    for row in diagnosis.worker_budget:
        fits = "fits" if row.fits else "too much"
        table.add_row(str(row.workers), units.size(row.needed_bytes), units.size(row.free_bytes), fits)
    return table


def _experiments(diagnosis: Diagnosis) -> Table:
    table = _table("experiments", "planned", "took")
    for row in findings.experiments(diagnosis):
        table.add_row(*row)
    table.caption = "cut out of all times above"
    table.caption_justify = "left"
    return table


def _bars(phases: tuple[Phase, ...], title: str) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column(title)
    table.add_column("time", justify="right")
    table.add_column("share", justify="right")
    table.add_column("")
    for phase in phases:
        if phase.share >= SMALLEST_SHARE:
            bar = "█" * max(round(phase.share * BAR), 0)
            table.add_row(phase.name, units.seconds(phase.seconds), units.share(phase.share), bar)
    return table


def _phases(diagnosis: Diagnosis) -> Table:
    table = _bars(diagnosis.phases, "all of the run")
    table.caption = f"not accounted for: {units.share(diagnosis.unaccounted_share)}"
    table.caption_justify = "left"
    return table


def _step(diagnosis: Diagnosis) -> Table:
    return _bars(diagnosis.step_phases, "a steady step")


def _loaders(diagnosis: Diagnosis) -> Table:
    table = _table("loader", "role", "workers", "batch", "length", "batches", "waited", "first batch")
    for loader in diagnosis.loaders:
        table.add_row(*_loader(loader))
    return table


def _loader(loader: LoaderWait) -> tuple[str, ...]:
    facts = loader.facts
    return (
        f"{facts.loader} {facts.dataset}",
        loader.role,
        str(facts.num_workers),
        str(facts.batch_size or "–"),
        str(facts.length or "–"),
        str(loader.batches),
        units.seconds(loader.wait_s),
        ", ".join(units.seconds(value) for value in loader.first_batch_s[:3]),
    )


def _workers(diagnosis: Diagnosis) -> Table:
    table = _table("worker", "read", "transform", "collate", "send", "CPU", "RSS")
    for worker in diagnosis.workers[:MOST_WORKERS]:
        stages = worker.stages
        times = (stages.read, stages.transform, stages.collate, stages.send, worker.cpu_s)
        table.add_row(str(worker.pid), *(units.seconds(value) for value in times), units.size(worker.rss_peak_bytes))
    hidden = len(diagnosis.workers) - MOST_WORKERS
    if hidden > 0:
        table.caption = f"and {hidden} more"
    return table


def _lines(diagnosis: Diagnosis) -> Table:
    table = _table("your lines", "in", "share", "phase")
    for line in diagnosis.hot_lines[:MOST_LINES]:
        table.add_row(_place(line.file, line.line), line.function, units.share(line.share), line.phase)
    return table


def _place(file: str, line: int) -> str:
    path = Path(file)
    here = Path.cwd()
    return f"{path.relative_to(here) if path.is_relative_to(here) else path.name}:{line}"


def _machine(diagnosis: Diagnosis) -> str:
    use, memory = diagnosis.machine, diagnosis.memory
    cores = f"{use.cores} cores" + (f" (quota {use.quota_cores:g})" if use.quota_cores else "")
    parts = [
        f"{cores}, {units.share(use.cpu_share)} of them used by this run",
        f"memory {units.size(memory.host_peak_bytes)}",
    ]
    parts.append(f"shared memory {units.size(memory.shm_peak_bytes)}")
    parts.append(f"disk {units.size(use.disk_read_bytes_per_s)}/s read")
    if diagnosis.samples_per_s is not None:
        parts.append(units.rate(diagnosis.samples_per_s, "samples"))
    device = diagnosis.device
    parts.append(
        f"device {device.name}" + (f" {units.share(device.busy_share)} busy" if device.busy_share is not None else "")
    )
    return " · ".join(parts)
