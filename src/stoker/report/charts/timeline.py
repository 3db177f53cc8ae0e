"""A few real steps across the main thread, the workers and the device; waits joined to the batch that ended them."""

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from stoker.records.attributed import Excerpt
from stoker.report import units
from stoker.report.charts.theme import COLOURS, colour, data, finish, unit_of

LANE = 46
"""Pixels of a lane: its name above, its bars below."""
BAR_TOP, BAR_BOTTOM = 0.40, 0.94
MOST_LANES = 18
ZOOM = "zoom"
"""The name of the selection that holds what part is seen; the page's buttons move it."""


def timeline(excerpt: Excerpt) -> Any:
    """Zoomable: drag to move, shift and wheel to zoom, double click for all of it."""
    lanes = {lane: i for i, lane in enumerate(shown_lanes(excerpt))}
    factor, unit = unit_of(excerpt.seconds)
    rows = [
        {
            "x": round(span.start_s * factor, 4),
            "x2": round(span.end_s * factor, 4),
            "y": lanes[span.lane] + BAR_TOP,
            "y2": lanes[span.lane] + BAR_BOTTOM,
            "what": span.name,
            "lane": span.lane,
            "time": units.seconds(span.end_s - span.start_s),
            "step": span.step,
        }
        for span in excerpt.spans
        if span.lane in lanes
    ]
    y = alt.Y("y:Q", axis=None, scale=alt.Scale(domain=[0, len(lanes)], reverse=True, nice=False))
    x = alt.X("x:Q", title=f"{unit}", scale=alt.Scale(domain=[0, round(excerpt.seconds * factor, 4)], nice=False))
    zoom = alt.selection_interval(
        name=ZOOM, bind="scales", encodings=["x"], zoom="wheel![event.shiftKey]", clear="dblclick"
    )
    bars = (
        alt.Chart(data(rows))
        .mark_rect(clip=True)
        .encode(
            x=x,
            x2="x2:Q",
            y=y,
            y2="y2:Q",
            color=colour("what", sorted({span.name for span in excerpt.spans})),
            tooltip=["lane:N", "what:N", "time:N", "step:Q"],
        )
        .add_params(zoom)
    )
    layers = [_step_marks(excerpt, factor), bars, *_joins(excerpt, lanes, factor), _names(lanes)]
    return finish(alt.layer(*layers), LANE * max(len(lanes), 1))


def shown_lanes(excerpt: Excerpt) -> list[str]:
    """All lanes, or the first workers with main thread and device if there are very many."""
    lanes = list(excerpt.lanes)
    return lanes if len(lanes) <= MOST_LANES else [*lanes[: MOST_LANES - 2], *lanes[-2:]]


def _names(lanes: Mapping[str, int]) -> Any:
    """In the picture, so that bars start at its edge also on a phone."""
    rows = [{"y": i + 0.2, "text": lane} for lane, i in lanes.items()]
    return (
        alt.Chart(data(rows))
        .mark_text(align="left", fontWeight="bold", baseline="middle")
        .encode(x=alt.value(2), y="y:Q", text="text:N")
    )


def _step_marks(excerpt: Excerpt, factor: float) -> Any:
    """Where each step begins."""
    starts: dict[int, float] = {}
    for span in excerpt.spans:
        if span.lane == "main thread" and span.step is not None:
            starts[span.step] = min(starts.get(span.step, span.start_s), span.start_s)
    rows = [{"x": round(at_s * factor, 4)} for at_s in starts.values()]
    return alt.Chart(data(rows)).mark_rule(clip=True, strokeDash=[2, 3], opacity=0.5).encode(x="x:Q")


def _joins(excerpt: Excerpt, lanes: Mapping[str, int], factor: float) -> list[Any]:
    """From the bar of the worker that made a batch to the wait that it ended."""
    main = lanes.get("main thread")
    if main is None:
        return []
    rows = [
        {
            "x": round(join.made_s * factor, 4),
            "x2": round(join.taken_s * factor, 4),
            "y": lanes[join.lane] + BAR_BOTTOM,
            "y2": main + BAR_TOP,
            "waited": join.made_s > join.taken_s - join.wait_s,
            "text": f"step {join.step}: waited {units.seconds(join.wait_s)} for this batch of {join.lane}",
        }
        for join in excerpt.joins
        if join.lane in lanes
    ]
    waited = [row for row in rows if row["waited"]]
    others = [row for row in rows if not row["waited"]]
    layers = [_rules(others, 1, 0.4)] if others else []
    if waited:
        ends = alt.Chart(data(waited)).mark_point(
            clip=True, filled=True, opacity=1, size=28, color=COLOURS["data_wait"]
        )
        words = [alt.Tooltip("text:N", title="joined")]
        layers += [_rules(waited, 2, 1), ends.encode(x="x2:Q", y="y2:Q", tooltip=words)]
    return layers


def _rules(rows: Sequence[Mapping[str, Any]], width: float, opacity: float) -> Any:
    """Strong where the main thread was waiting when the batch came, faint where the batch was there before."""
    rules = alt.Chart(data(rows)).mark_rule(clip=True, strokeWidth=width, opacity=opacity, color=COLOURS["data_wait"])
    return rules.encode(x="x:Q", x2="x2:Q", y="y:Q", y2="y2:Q", tooltip=[alt.Tooltip("text:N", title="joined")])
