"""Everything that is drawn or written can be told from its ground: WCAG 2.2, 3:1 for marks and 4.5:1 for text."""

import re
from pathlib import Path

import pytest

from stoker.report.charts import theme

CSS = (Path(theme.__file__).parents[1] / "page.css").read_text()
MARK, TEXT = 3.0, 4.5


def luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def schemes() -> list[dict[str, str]]:
    """The colours of the page: light, dark and printed."""
    parts = re.split(r"--ground: (?=#)", CSS)[1:]
    return [dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", f"--ground: {part}")) for part in parts]


def test_the_yardstick() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.01)
    assert len(schemes()) == 3


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_mark_stands_out(scheme: str) -> None:
    colours = {*theme.COLOURS.values(), *theme.MANY, theme.ACCENT}
    weak = {colour: contrast(colour, theme.GROUND[scheme]) for colour in colours}
    assert {colour: ratio for colour, ratio in weak.items() if ratio < MARK} == {}
    for text in (theme.INK, theme.FAINT):
        assert contrast(text[scheme], theme.GROUND[scheme]) >= TEXT


@pytest.mark.parametrize("scheme", [0, 1, 2])
def test_every_word_can_be_read(scheme: int) -> None:
    colours = schemes()[scheme]
    weak = {
        (name, ground): contrast(colours[name], colours[ground])
        for name in ("ink", "faint", "accent", "mark", "good")
        for ground in ("ground", "card")
    }
    assert {pair: ratio for pair, ratio in weak.items() if ratio < TEXT} == {}
