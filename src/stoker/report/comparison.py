"""Two runs side by side, for people."""

from collections.abc import Iterator, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from stoker.records.compared import Comparison, Contrast, Difference
from stoker.records.diagnosis import Evidence
from stoker.records.observed import Value
from stoker.report import findings, units

WORDS = {
    "faster": "B is faster",
    "slower": "B is slower",
    "alike": "no difference",
    "undecided": "cannot be told",
}
NO_CHANGE = 0.005


def verdict(found: Comparison) -> str:
    """One sentence: which is faster, by how much, and why that is so or cannot be told."""
    if found.speed is None:
        return f"{WORDS[found.outcome]}: {found.reason}"
    low, high = found.speed.low, found.speed.high
    return f"{WORDS[found.outcome]}: {found.speed.ratio:.2f}× (95 %: {low:.2f} to {high:.2f}); {found.reason}"


def settings(found: Comparison) -> Iterator[tuple[str, str, str]]:
    """What was set differently."""
    for one in found.settings:
        yield one.name.replace("_", " "), _set(one, one.a), _set(one, one.b)


def _set(one: Difference, value: Value) -> str:
    if value is None:
        return "–"
    return units.size(value) if one.name.endswith("bytes") and isinstance(value, int) else str(value)


def rows(contrasts: Sequence[Contrast]) -> Iterator[tuple[str, str, str, str]]:
    """Name, both values, and B over A."""
    for one in contrasts:
        yield one.name.replace("_", " "), _value(one.a, one.unit), _value(one.b, one.unit), _change(one)


def _value(value: float | None, unit: str) -> str:
    if value is None:
        return "–"
    return units.rate(value, "samples") if unit == "samples/s" else findings.value(Evidence("", value, unit))


def _change(one: Contrast) -> str:
    if not one.a or one.b is None:
        return ""
    ratio = one.b / one.a
    return "=" if abs(ratio - 1) < NO_CHANGE else f"{ratio:.2f}×"


def show(found: Comparison, console: Console) -> None:
    """Print the comparison."""
    console.print(Text(f"A {found.a}\nB {found.b}\n"))
    console.print(Text(verdict(found), style="bold"))
    differ = _table(("set differently", "A", "B"), settings(found))
    console.print(differ if found.settings else Text("nothing was set differently", style="dim"))
    console.print(_table(("measured", "A", "B", "B ÷ A"), rows(found.figures)))
    if found.phases:
        console.print(_table(("a steady step", "A", "B", "B ÷ A"), rows(found.phases)))
    if found.outcome == "undecided":
        console.print(Text("to prove it: stoker tune --knob NAME=VALUE -- COMMAND", style="dim"))


def _table(heads: Sequence[str], cells: Iterator[tuple[str, ...]]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for i, head in enumerate(heads):
        table.add_column(head, justify="left" if i == 0 else "right", overflow="fold")
    for row in cells:
        table.add_row(*(Text(cell) for cell in row))
    return table
