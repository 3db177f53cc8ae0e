"""Pictures of records, as Vega-Lite through altair: one function a chart, records in, `alt.Chart` out.

Nothing here computes a figure that the records do not hold. Every string of a record goes in as data, never as an
expression, so that a file name cannot become code. Needs the extra `report`.

    chart = charts.step(diagnosis)
    chart.to_dict(), charts.svg(chart)
"""

from stoker.report.charts.run import busy, memory, ready, steps
from stoker.report.charts.step import lines, step, workers
from stoker.report.charts.svg import svg
from stoker.report.charts.theme import config
from stoker.report.charts.timeline import timeline
from stoker.report.charts.trials import predictions, trials

__all__ = [
    "busy",
    "config",
    "lines",
    "memory",
    "predictions",
    "ready",
    "step",
    "steps",
    "svg",
    "timeline",
    "trials",
    "workers",
]
