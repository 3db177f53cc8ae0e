"""A run over time: step times, batches that are ready, the device, memory."""

import math
from typing import Any

import altair as alt

from stoker.records.attributed import Course
from stoker.report import units
from stoker.report.charts.theme import ACCENT, COLOURS, MANY, data, finish, unit_of

STEPS_HEIGHT = 220
LABELLED = 6
"""Spikes with words beside them; the others are only points."""
DRAWN_LIMIT = 4
"""A limit further away than this many times the peak is said, not drawn: it would flatten everything else."""
CLOSE_SHARE = 0.08
"""Labels nearer to each other than this share of the picture would overlap."""


def steps(course: Course) -> Any:
    """Step time over the run: warm-up shaded, epochs marked, spikes labelled."""
    longest = max((one.high_s for one in course.steps), default=0.0)
    factor, unit = unit_of(longest)
    rows = [
        {
            "step": one.first,
            "low": round(one.low_s * factor, 4),
            "median": round(one.median_s * factor, 4),
            "high": round(one.high_s * factor, 4),
            "steps": f"{one.first}" if one.count == 1 else f"{one.first} to {one.first + one.count - 1}",
            "time": units.seconds(one.median_s),
            "most": units.seconds(one.high_s),
        }
        for one in course.steps
    ]
    base = alt.Chart(data(rows)).encode(x=alt.X("step:Q", title="step", scale=alt.Scale(nice=False)))
    band = base.mark_area(opacity=0.3, color=ACCENT).encode(
        y=alt.Y("low:Q", title=f"{unit} a step", scale=alt.Scale(zero=True)), y2="high:Q"
    )
    line = base.mark_line(color=ACCENT, strokeWidth=1.5, interpolate="linear").encode(
        y="median:Q", tooltip=["steps:N", "time:N", "most:N"]
    )
    return finish(alt.layer(*_warmup(course), *_epochs(course), band, line, *_spikes(course, factor)), STEPS_HEIGHT)


def _warmup(course: Course) -> list[Any]:
    if not course.warmup_steps:
        return []
    row = {"from": 0, "to": course.warmup_steps, "text": f"warm-up: {course.warmup_steps}"}
    base = alt.Chart(data([row]))
    shade = base.mark_rect(opacity=0.22, color=COLOURS["other"]).encode(x="from:Q", x2="to:Q")
    words = base.mark_text(align="left", dx=3, dy=-3, baseline="bottom", fontSize=11).encode(
        x="from:Q", y=alt.value(STEPS_HEIGHT), text="text:N"
    )
    return [shade, words]


def _epochs(course: Course) -> list[Any]:
    most = 40  # more are a grid, not information
    if not course.epoch_starts or len(course.epoch_starts) > most:
        return []
    rows = [{"step": first, "text": "next epoch"} for first in course.epoch_starts]
    return [alt.Chart(data(rows)).mark_rule(strokeDash=[2, 3]).encode(x="step:Q", tooltip="text:N")]


def _spikes(course: Course, factor: float) -> list[Any]:
    if not course.long_steps:
        return []
    labelled = _apart(course)
    last = course.steps[-1].first + course.steps[-1].count
    rows: list[dict[str, Any]] = [
        {
            "step": one.step,
            "at": round(one.seconds * factor, 4),
            "text": f"{one.part} {units.seconds(one.seconds)}",
            "time": units.seconds(one.seconds),
            "part": one.part,
        }
        for one in course.long_steps
    ]
    points = alt.Chart(data(rows)).mark_point(filled=True, opacity=1, size=45, color=COLOURS["data_wait"])
    layers = [points.encode(x="step:Q", y="at:Q", tooltip=["step:Q", "time:N", "part:N"])]
    left = [row for row in rows if row["step"] in labelled and row["step"] < last / 2]
    right = [row for row in rows if row["step"] in labelled and row["step"] >= last / 2]
    # Towards the middle of the picture, so that none is cut off.
    after = alt.Chart(data(left)).mark_text(align="left", dx=7, fontSize=11)
    before = alt.Chart(data(right)).mark_text(align="right", dx=-7, fontSize=11)
    for words, chosen in ((after, left), (before, right)):
        if chosen:
            layers.append(words.encode(x="step:Q", y="at:Q", text="text:N"))
    return layers


def _apart(course: Course) -> set[int]:
    """The longest of the spikes whose labels do not touch."""
    whole = course.steps[-1].first + course.steps[-1].count
    tallest = max(one.seconds for one in course.long_steps)
    chosen: list[tuple[int, float]] = []
    for one in sorted(course.long_steps, key=lambda one: -one.seconds):
        near = [
            1
            for step, seconds in chosen
            if abs(step - one.step) < 4 * CLOSE_SHARE * whole and abs(seconds - one.seconds) < CLOSE_SHARE * tallest
        ]
        if not near and len(chosen) < LABELLED:
            chosen.append((one.step, one.seconds))
    return {step for step, _ in chosen}


def ready(course: Course) -> Any:
    """Batches that were ready when a step asked for one; at 0 the main thread waits for the loader."""
    rows: list[dict[str, Any]] = [
        {"step": one.first, "ready": round(one.ready, 3), "text": f"{one.ready:.3g}"}
        for one in course.steps
        if one.ready is not None
    ]
    most = max([1, *(math.ceil(row["ready"]) for row in rows)])
    whole = alt.Axis(tickCount=min(most, 4), format="d")
    chart = (
        alt.Chart(data(rows))
        .mark_area(interpolate="step-after", opacity=0.45, color=ACCENT, line={"color": ACCENT, "strokeWidth": 1.2})
        .encode(
            x=alt.X("step:Q", title="step", scale=alt.Scale(nice=False)),
            y=alt.Y("ready:Q", title="batches ready", axis=whole, scale=alt.Scale(domain=[0, most])),
            tooltip=["step:Q", alt.Tooltip("text:N", title="ready")],
        )
    )
    return finish(chart, 130)


def busy(course: Course) -> Any:
    """The device's busy share over time."""
    rows = [
        {"s": round(time_s, 4), "busy": round(share, 4), "text": units.share(share)}
        for time_s, share in zip(course.busy_times_s, course.busy_shares, strict=True)
    ]
    chart = (
        alt.Chart(data(rows))
        .mark_area(
            interpolate="step-before", opacity=0.45, color="#1f8a70", line={"color": "#1f8a70", "strokeWidth": 1}
        )
        .encode(
            x=alt.X("s:Q", title="s of the run", scale=alt.Scale(nice=False, domain=[0, max(course.seconds, 1e-3)])),
            y=alt.Y("busy:Q", title="device busy", axis=alt.Axis(format=".0%"), scale=alt.Scale(domain=[0, 1])),
            tooltip=[alt.Tooltip("s:Q", title="at, s"), alt.Tooltip("text:N", title="busy")],
        )
    )
    return finish(chart, 130)


def memory(course: Course) -> Any:
    """Resident memory of each process, against the machine's."""
    names = [one.name for one in course.memory]
    peak = max((size or 0 for one in course.memory for size in one.sizes_bytes), default=0)
    factor, unit = (2**30, "GiB") if peak >= 2**30 else (2**20, "MiB")
    rows = [
        {"s": round(time_s, 3), "process": one.name, "size": size and round(size / factor, 4), "text": units.size(size)}
        for one in course.memory
        for time_s, size in zip(one.times_s, one.sizes_bytes, strict=True)
    ]
    tones = alt.Scale(domain=names, range=[MANY[i % len(MANY)] for i in range(len(names))])
    curves = (
        alt.Chart(data(rows))
        .mark_line(strokeWidth=2, interpolate="step-after", point={"size": 18, "filled": True})
        .encode(
            x=alt.X("s:Q", title="s of the run", scale=alt.Scale(nice=False)),
            y=alt.Y("size:Q", title=unit, scale=alt.Scale(zero=True)),
            color=alt.Color("process:N", scale=tones),
            tooltip=["process:N", alt.Tooltip("s:Q", title="at, s"), alt.Tooltip("text:N", title="memory")],
        )
    )
    return finish(alt.layer(curves, *_limit(course, peak, factor)), 200)


def _limit(course: Course, peak: int, factor: float) -> list[Any]:
    limit = course.memory_limit_bytes
    if not limit or limit > DRAWN_LIMIT * peak:
        return []
    row = {"size": round(limit / factor, 4), "text": f"limit {units.size(limit)}"}
    base = alt.Chart(data([row])).encode(y="size:Q")
    words = base.mark_text(align="left", dx=4, dy=-7).encode(x=alt.value(0), text="text:N")
    return [base.mark_rule(strokeWidth=2, strokeDash=[6, 3], color=COLOURS["unsafe"]), words]
