"""A run while it goes on. The rows have a name, so that a page can give a chart new ones without drawing it again."""

from collections.abc import Sequence
from typing import Any

import altair as alt

from stoker.records.live import Moment
from stoker.report.charts.run import DRAWN_LIMIT
from stoker.report.charts.theme import ACCENT, colour, finish

ROWS = "moments"
"""What the page calls the rows."""


def speed_rows(history: Sequence[Moment]) -> list[dict[str, Any]]:
    """Steps a second."""
    return [{"s": 0, "rate": 0}, *({"s": round(one.time_s, 2), "rate": _round(one.steps_per_s)} for one in history)]


def share_rows(history: Sequence[Moment]) -> list[dict[str, Any]]:
    """Shares of time: waiting for data, and the device busy."""
    waits = [{"s": round(one.time_s, 2), "what": "data_wait", "share": _round(one.wait_share)} for one in history]
    waits = waits or [{"s": 0, "what": "data_wait", "share": 0}]
    busy = [
        {"s": round(one.time_s, 2), "what": "device busy", "share": _round(one.device_busy_share)}
        for one in history
        if one.device_busy_share is not None
    ]
    return [*waits, *busy]


def memory_rows(history: Sequence[Moment]) -> list[dict[str, Any]]:
    """GiB that the run holds, and that it could; a limit that is far away is not drawn."""
    peak = max((one.used_bytes or 0 for one in history), default=0)
    rows: list[dict[str, Any]] = [{"s": 0, "what": "the run", "size": 0}]
    for one in history:
        if one.used_bytes is None:
            continue
        rows.append({"s": round(one.time_s, 2), "what": "the run", "size": round(one.used_bytes / 2**30, 4)})
        limit = None if one.left_bytes is None else one.used_bytes + one.left_bytes
        if limit is not None and limit < DRAWN_LIMIT * peak:
            rows.append({"s": round(one.time_s, 2), "what": "limit", "size": round(limit / 2**30, 4)})
    return rows


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 5)


def _named(rows: Sequence[dict[str, Any]]) -> Any:
    return alt.Chart(alt.InlineData(values=list(rows), name=ROWS))


def _x() -> Any:
    return alt.X("s:Q", title="s of the run", scale=alt.Scale(nice=False))


def speed(history: Sequence[Moment]) -> Any:
    """Steps a second over the run."""
    area = {"color": ACCENT, "strokeWidth": 1.5}
    chart = (
        _named(speed_rows(history))
        .mark_area(interpolate="step", opacity=0.3, color=ACCENT, line=area)
        .encode(x=_x(), y=alt.Y("rate:Q", title="steps a second"), tooltip=["s:Q", "rate:Q"])
    )
    return finish(chart, 170)


def shares(history: Sequence[Moment]) -> Any:
    """Waiting for data, and the device busy."""
    chart = (
        _named(share_rows(history))
        .mark_line(interpolate="step", strokeWidth=2)
        .encode(
            x=_x(),
            y=alt.Y("share:Q", title="share of time", axis=alt.Axis(format=".0%"), scale=alt.Scale(domain=[0, 1])),
            color=colour("what", ["data_wait", "device busy"]),
            tooltip=["s:Q", "what:N", "share:Q"],
        )
    )
    return finish(chart, 170)


def held(history: Sequence[Moment]) -> Any:
    """Memory of the whole run, against what it could have."""
    chart = (
        _named(memory_rows(history))
        .mark_line(interpolate="step", strokeWidth=2)
        .encode(
            x=_x(),
            y=alt.Y("size:Q", title="GiB", scale=alt.Scale(zero=True)),
            color=colour("what", ["the run", "limit"]),
            tooltip=["s:Q", "what:N", "size:Q"],
        )
    )
    return finish(chart, 170)
