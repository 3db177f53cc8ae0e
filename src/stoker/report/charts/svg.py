"""A chart as an SVG picture, for Markdown and for the README."""

from typing import Any

from stoker.report.charts.theme import GROUND, SVG_WIDTH, config


def svg(chart: Any, scheme: str = "light", width: int = SVG_WIDTH) -> str:
    """A chart, or what its `to_dict` gives, drawn without a browser on the scheme's ground."""
    import vl_convert

    spec = {**(chart if isinstance(chart, dict) else chart.to_dict()), "width": width}
    spec.pop("autosize", None)
    looks = {**config(scheme), "background": GROUND[scheme]}
    return str(vl_convert.vegalite_to_svg(spec, config=looks))
