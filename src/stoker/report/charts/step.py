"""One steady step, the workers that feed it, and the user's lines behind it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import altair as alt

from stoker.records.attributed import HotLine
from stoker.records.diagnosis import Diagnosis
from stoker.report import units
from stoker.report.charts.theme import colour, data, finish, unit_of

MOST_WORKERS = 16
MOST_LINES = 8
STAGES = ("read", "transform", "collate", "send")


def step(diagnosis: Diagnosis) -> Any:
    """Where a mean steady step's time goes, with the ceilings as lines: what each half would need alone."""
    ceilings = list(_ceilings(diagnosis))
    whole_s = sum(phase.seconds for phase in diagnosis.step_phases)
    factor, unit = unit_of(max([whole_s, *(seconds for _, seconds in ceilings)], default=0.0))
    at_s, rows = 0.0, []
    for phase in diagnosis.step_phases:
        rows.append({
            "phase": phase.name,
            "start": round(at_s * factor, 4),
            "end": round((at_s + phase.seconds) * factor, 4),
            "time": units.seconds(phase.seconds),
            "share": units.share(phase.share),
        })  # fmt: skip
        at_s += phase.seconds
    x = alt.X("start:Q", title=f"{unit} of one step", scale=alt.Scale(nice=False, zero=True))
    bars = (
        alt.Chart(data(rows))
        .mark_bar(clip=True)
        .encode(
            x=x,
            x2="end:Q",
            y=alt.value(34),
            y2=alt.value(86),
            color=colour("phase", [phase.name for phase in diagnosis.step_phases]),
            tooltip=["phase:N", "time:N", "share:N"],
        )
    )
    return finish(alt.layer(bars, *_ceiling_layers(ceilings, factor)), 120)


def _ceilings(diagnosis: Diagnosis) -> Iterator[tuple[str, float]]:
    """Name and seconds a step of each ceiling that was measured."""
    if diagnosis.samples_per_s is None or diagnosis.mean_step_s is None:
        return
    batch = diagnosis.samples_per_s * diagnosis.mean_step_s
    if diagnosis.ceilings.loader_samples_per_s:
        yield "loader alone", batch / diagnosis.ceilings.loader_samples_per_s
    if diagnosis.ceilings.compute_samples_per_s:
        yield "model alone", batch / diagnosis.ceilings.compute_samples_per_s


def _ceiling_layers(ceilings: list[tuple[str, float]], factor: float) -> Iterator[Any]:
    """One label above the bar and one below, so that ceilings close to each other stay readable."""
    longest = max((seconds for _, seconds in ceilings), default=0.0)
    for place, (name, seconds) in enumerate(ceilings):
        row = {"at": round(seconds * factor, 4), "text": f"{name} {units.seconds(seconds)}"}
        base = alt.Chart(data([row])).encode(x=alt.X("at:Q"))
        for style, width in (("halo", 6), ("ink", 2.5)):  # seen on every colour below it
            rule = base.mark_rule(strokeWidth=width, strokeDash=[6, 3] if style == "ink" else [], style=style)
            yield rule.encode(y=alt.value(22), y2=alt.value(98))
        right = seconds > longest / 2
        yield base.mark_text(
            align="right" if right else "left", dx=2 if right else -2, fontWeight="bold", baseline="middle"
        ).encode(y=alt.value(14 if place == 0 else 108), text="text:N")


def workers(diagnosis: Diagnosis) -> Any:
    """Seconds of each worker in each stage of making batches."""
    rows = []
    for worker in diagnosis.workers[:MOST_WORKERS]:
        for order, stage in enumerate(STAGES):
            seconds = getattr(worker.stages, stage)
            if seconds is not None:
                name = f"pid {worker.pid}"
                rows.append(
                    {
                        "worker": name,
                        "stage": stage,
                        "seconds": round(seconds, 6),
                        "time": units.seconds(seconds),
                        "order": order,
                    }
                )
    chart = (
        alt.Chart(data(rows))
        .mark_bar()
        .encode(
            x=alt.X("sum(seconds):Q", title="s in all"),
            y=alt.Y("worker:N", sort=None, title=None),
            color=colour("stage", STAGES),
            order=alt.Order("order:Q"),
            tooltip=["worker:N", "stage:N", "time:N"],
        )
    )
    return finish(chart, 26 * max(len({row["worker"] for row in rows}), 1) + 10)


def lines(diagnosis: Diagnosis) -> Any:
    """The user's lines by the share of wall time spent below them."""
    shown = diagnosis.hot_lines[:MOST_LINES]
    rows = [
        {
            "line": f"{i}",
            "label": f"{place(line)}  {line.function}",
            "share": round(line.share, 5),
            "text": units.share(line.share),
            "phase": line.phase,
            "file": line.file,
        }
        for i, line in enumerate(shown)
    ]
    base = alt.Chart(data(rows)).encode(y=alt.Y("line:N", sort=None, axis=None))
    bars = base.mark_bar(height=12, yOffset=9).encode(
        x=alt.X("share:Q", title="share of wall time", axis=alt.Axis(format=".0%")),
        color=colour("phase", [line.phase for line in shown]),
        tooltip=["label:N", "text:N", "phase:N", "file:N"],
    )
    names = base.mark_text(align="left", baseline="middle", yOffset=-7).encode(x=alt.value(0), text="label:N")
    return finish(alt.layer(bars, names), 38 * max(len(rows), 1))


def place(line: HotLine) -> str:
    """A line as one says it."""
    return f"{Path(line.file).name}:{line.line}"
