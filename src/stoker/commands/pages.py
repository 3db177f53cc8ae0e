"""The pages with pictures, for the verbs that write one; without the extra `report` a line says how to get it."""

import sys
from collections.abc import Sequence
from pathlib import Path

from stoker.errors import MissingExtraError
from stoker.ledger import HOME
from stoker.records.attributed import Course
from stoker.records.diagnosis import Diagnosis
from stoker.records.observed import Observation
from stoker.records.tuning import Tuning

NAME = "report.html"
KEPT = HOME / "cache"


def can_draw() -> bool:
    """Whether the extra `report` is installed."""
    from stoker.report.page import can_draw

    return can_draw()


def of_run(seen: Observation, diagnosis: Diagnosis, course: Course) -> str:
    """The page of one run."""
    _check()
    from stoker.report import run_page

    return run_page.html(diagnosis, course, seen.run, seen.command, seen.started_s, KEPT)


def offer_run(seen: Observation, diagnosis: Diagnosis, course: Course, places: Sequence[Path]) -> None:
    """Write a run's page to each place and say where it is; what was found must not be lost over a picture."""
    from stoker.report import page

    if not can_draw():
        _say_how()
        return
    try:
        text = of_run(seen, diagnosis, course)
        for place in places:
            page.write(text, place)
    except Exception as error:  # noqa: BLE001  the diagnosis is made; altair or a full disk must not take it away
        print(f"stoker: the page could not be written: {error}", file=sys.stderr)
    else:
        print(f"stoker: the report with pictures: {places[-1]}", file=sys.stderr)


def place_of(directory: Path) -> str | None:
    """Where a tuning's page will be, or None where none can be drawn."""
    return str(directory / NAME) if can_draw() else None


def of_tuning(tuning: Tuning, run: str, command: Sequence[str], record: str) -> str:
    """The page of one tuning; `record` is its decision record."""
    _check()
    from stoker.report import tune_page

    return tune_page.html(tuning, run, command, record, KEPT)


def offer_tuning(tuning: Tuning, command: Sequence[str], directory: Path) -> None:
    """Write a tuning's page, and its charts beside the decision record, which shows them."""
    from stoker.report import page

    if not can_draw():
        _say_how()
        return
    record = directory / "decision.md"
    try:
        page.write(of_tuning(tuning, directory.name, command, record.read_text()), directory / NAME)
        _illustrate(tuning, record)
    except Exception as error:  # noqa: BLE001  the decision is made; a picture must not take it away
        print(f"stoker: the page could not be written: {error}", file=sys.stderr)
    else:
        print(f"stoker: the report with pictures: {directory / NAME}", file=sys.stderr)


def _illustrate(tuning: Tuning, record: Path) -> None:
    from stoker.report import charts, figures

    drawn = list(figures.of_tuning(tuning))
    for figure in drawn:
        (record.parent / f"{figure.key}.svg").write_text(charts.svg(figure.chart))
    if drawn:
        shown = "\n\n".join(f"![{figure.title}]({figure.key}.svg)\n\n{figure.caption}" for figure in drawn)
        record.write_text(f"{record.read_text().rstrip()}\n\n## Charts\n\n{shown}\n")


def _check() -> None:
    if not can_draw():
        raise MissingExtraError("altair", "report")


def _say_how() -> None:
    from stoker.report.page import HOW_TO_GET

    print(f"stoker: for a page with pictures of this: {HOW_TO_GET}", file=sys.stderr)
