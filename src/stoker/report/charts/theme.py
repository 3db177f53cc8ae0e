"""Colours and the looks of charts.

Every mark's colour has a contrast of at least 3:1 on white and on the page's dark ground, so that one picture serves
both; only text, axes and grid differ, and stand in the config that the page applies when it draws.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import altair as alt

COLOURS: Mapping[str, str] = {
    "data_wait": "#d9480f",
    "first_batch": "#b5651d",
    "transfer": "#b8860b",
    "forward": "#2f7fd6",
    "loss": "#5b6ee1",
    "backward": "#1f8a70",
    "optimizer": "#3f9142",
    "zero_grad": "#7a8b2e",
    "sync": "#c2417a",
    "validation": "#6a7fdb",
    "checkpoint": "#9c6b30",
    "logging": "#8d6e63",
    "gc": "#b0486b",
    "startup": "#7b7f9e",
    "shutdown": "#8a7f70",
    "other": "#7d8590",
    "copy": "#b8860b",
    "read": "#8a63d2",
    "fetch": "#8a63d2",
    "transform": "#4a7fc4",
    "collate": "#b45fb8",
    "send": "#7d7399",
    "keep": "#3f9142",
    "revert": "#d9480f",
    "undecided": "#7d8590",
    "unsafe": "#c2417a",
}
MANY = ("#2f7fd6", "#d9480f", "#1f8a70", "#a05bc0", "#b8860b", "#c2417a", "#7a8b2e", "#5b6ee1", "#8d6e63", "#7d8590")
"""For what has no colour of its own."""
ACCENT = "#2f7fd6"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', sans-serif"
INK = {"light": "#1f2328", "dark": "#e6e8eb"}
FAINT = {"light": "#59636e", "dark": "#a3abb5"}
GRID = {"light": "#e3e6ea", "dark": "#30363f"}
GROUND = {"light": "#ffffff", "dark": "#15181d"}
SVG_WIDTH = 720
MILLISECONDS_BELOW_S = 2.0


def config(scheme: str = "light") -> dict[str, Any]:
    """What the page gives to every chart: `scheme` is light or dark."""
    ink, faint, grid = INK[scheme], FAINT[scheme], GRID[scheme]
    return {
        "background": "transparent",
        "font": FONT,
        "view": {"stroke": None},
        "axis": {
            "labelColor": faint,
            "titleColor": faint,
            "titleFontWeight": "normal",
            "gridColor": grid,
            "domainColor": grid,
            "tickColor": grid,
            "labelFontSize": 12,
            "titleFontSize": 12,
            "labelLimit": 240,
            "tickCount": 7,
        },
        "legend": {
            "labelColor": ink,
            "titleColor": faint,
            "labelFontSize": 12,
            "titleFontSize": 12,
            "titleFontWeight": "normal",
            "orient": "bottom",
            "symbolType": "square",
            "title": None,
            "columns": 7,
        },
        "text": {"color": ink, "fontSize": 12},
        "title": {"color": ink, "anchor": "start", "fontSize": 14},
        "rule": {"color": faint},
        "style": {"halo": {"color": GROUND[scheme]}, "ink": {"color": ink}},
    }


def data(rows: Iterable[Mapping[str, Any]]) -> Any:
    """Rows as a chart's data, written into the chart itself."""
    return alt.InlineData(values=[dict(row) for row in rows])


def colour(field: str, names: Sequence[str], **more: Any) -> Any:
    """The colour of what has a name: its own, in the order of the table above."""
    known = [name for name in COLOURS if name in names]
    rest = [name for name in names if name not in COLOURS]
    tones = [*(COLOURS[name] for name in known), *(MANY[i % len(MANY)] for i in range(len(rest)))]
    return alt.Color(f"{field}:N", scale=alt.Scale(domain=[*known, *rest], range=tones), **more)


def unit_of(longest_s: float) -> tuple[float, str]:
    """The factor and the name of the unit in which durations up to this one read well."""
    return (1e3, "ms") if longest_s < MILLISECONDS_BELOW_S else (1.0, "s")


def finish(chart: Any, height: int) -> Any:
    """As wide as where it stands."""
    fit = alt.AutoSizeParams(type="fit-x", contains="padding")
    return chart.properties(width="container", height=height, autosize=fit)
