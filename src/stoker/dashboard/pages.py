"""Entries and records as pages. Everything goes through templates that escape it."""

import json
import shlex
import time
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from stoker.dashboard.shelf import TUNING, Entry
from stoker.ledger import BenchRow
from stoker.records.attributed import Course
from stoker.records.codec import decode
from stoker.records.compared import Comparison
from stoker.records.diagnosis import Diagnosis
from stoker.records.live import Live
from stoker.records.tuning import Trial, Tuning
from stoker.report import comparison, live_page, run_page, tune_page, units
from stoker.report import page as report_page
from stoker.report.figures import Figure
from stoker.report.page import Section, Table, Top

HERE = Path(__file__).parent
MOST_RUNS = 500
"""Rows of the list; what is older is counted, and found by its name in the address."""


@cache
def _environment() -> Environment:
    places = FileSystemLoader([HERE / "templates", report_page.HERE])
    made = Environment(loader=places, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    made.filters["when"] = when
    made.filters["part"] = lambda text: quote(text, safe="")
    return made


def render(name: str, **values: Any) -> str:
    """One template."""
    return _environment().get_template(f"{name}.html.jinja").render(**values)


def when(time_s: float) -> str:
    """A moment as the machine's clock shows it."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time_s))


def drawn(figures: Sequence[Figure]) -> Markup:
    """The charts of a page as data inside it; empty without any."""
    from stoker.report.charts.theme import config

    charts = {figure.key: figure.chart for figure in figures}
    return report_page.embedded({"charts": charts, "configs": {name: config(name) for name in ("light", "dark")}})


# ---- the list --------------------------------------------------------------------------------------------


def row(entry: Entry) -> dict[str, str]:
    """One run in the list: what identifies it, what it looks like, and whether that has changed."""
    html = render("run_row", entry=entry, command=shlex.join(entry.command))
    return {"run": entry.run, "html": html}


def listing(entries: Sequence[Entry]) -> list[dict[str, str]]:
    """The rows of the list."""
    return [row(entry) for entry in entries[:MOST_RUNS]]


def runs(root: str, entries: Sequence[Entry], notice: str | None, home: Path) -> str:
    """The first page."""
    decisions = [_decision(entry) for entry in entries if entry.kind == "decision"][:MOST_RUNS]
    return render(
        "runs",
        root=root,
        title="Runs",
        rows=[Markup(one["html"]) for one in listing(entries)],  # noqa: S704  a template of ours made it
        count=len(entries),
        hidden=max(len(entries) - MOST_RUNS, 0),
        decisions=decisions,
        notice=notice,
        home=str(home),
    )


def _decision(entry: Entry) -> dict[str, Any]:
    """A tuning in one line; one that cannot be read says so."""
    try:
        tuning = read_tuning(entry)
    except (OSError, ValueError) as error:
        return {"entry": entry, "trouble": f"its record is broken: {error}", "knobs": "", "ratio": "", "trials": 0}
    final = tuning.final
    knobs = ", ".join(f"{name}={value}" for name, value in final.knobs.items()) or "as it was"
    ratio = "–" if final.ratio is None else f"{final.ratio:.2f}×"
    return {"entry": entry, "trouble": None, "knobs": knobs, "ratio": ratio, "trials": len(tuning.trials)}


def read_tuning(entry: Entry) -> Tuning:
    """What a tuning decided."""
    assert entry.directory is not None
    return decode(Tuning, json.loads((entry.directory / TUNING).read_text()))


# ---- one run ---------------------------------------------------------------------------------------------


def message(root: str, title: str, text: str, detail: str = "", *, working: str = "") -> str:
    """A page that only says something; `working` is an address that answers when the page can be shown."""
    return render("message", root=root, title=title, text=text, detail=detail, working=working)


def live(root: str, entry: Entry, seen: Live) -> str:
    """A run that goes on."""
    figures = tuple(live_page.figures(seen))
    return render(
        "live",
        root=root,
        title=entry.run,
        command=shlex.join(entry.command),
        parts=parts(seen),
        figures=figures,
        charts=drawn(figures),
        run=entry.run,
    )


def parts(seen: Live) -> dict[str, Markup]:
    """What changes on the page of a run that goes on, by the id of its place."""
    now, over = live_page.alarms(seen)
    made = {
        "live-merits": render("live_merits", merits=tuple(live_page.merits(seen))),
        "live-alarms": render("live_alarms", now=now, over=over),
        "live-tables": render("live_tables", section=live_page.tables(seen)),
    }
    return {name: Markup(html) for name, html in made.items()}  # noqa: S704  templates of ours made them


def ended(root: str, entry: Entry, diagnosis: Diagnosis, course: Course | None) -> str:
    """A run that is over: the same as its report."""
    top = run_page.top(diagnosis, entry.run, entry.command)
    return _report(root, entry, top, list(run_page.sections(diagnosis, course)))


def decision(root: str, entry: Entry) -> str:
    """A tuning: the same as its report."""
    tuning = read_tuning(entry)
    assert entry.directory is not None
    try:
        record = (entry.directory / "decision.md").read_text(errors="replace")
    except OSError:
        record = "decision.md is not there any more"
    return _report(
        root, entry, tune_page.top(tuning, entry.run, entry.command), list(tune_page.sections(tuning, record))
    )


def tuning(root: str, entry: Entry, records: Sequence[str]) -> str:
    """A tuning that goes on, or was broken off: what it has tried so far."""
    trials = tuple(trial for record in records if (trial := _trial(record)) is not None)
    section = Section("so-far", "Tried so far", tables=(tune_page.trials_table(trials),)) if trials else None
    return render("tuning", root=root, title=entry.run, entry=entry, command=shlex.join(entry.command), section=section)


def _trial(record: str) -> Trial | None:
    try:
        return decode(Trial, json.loads(record))
    except ValueError:
        return None


def _report(root: str, entry: Entry, top: Top, sections: Sequence[Section]) -> str:
    figures = [figure for section in sections for figure in section.figures]
    return render("report", root=root, title=top.title, top=top, sections=sections, charts=drawn(figures), entry=entry)


# ---- two runs, and data sets -----------------------------------------------------------------------------


def compared(root: str, found: Comparison) -> str:
    """Two runs side by side."""
    figures = Table("Measured", ("figure", "A", "B", "B ÷ A"), tuple(comparison.rows(found.figures)))
    phases = Table("A mean steady step", ("phase", "A", "B", "B ÷ A"), tuple(comparison.rows(found.phases)))
    settings = Table("Set differently", ("setting", "A", "B"), tuple(comparison.settings(found)), words=True)
    return render(
        "compare",
        root=root,
        title="Compare",
        found=found,
        verdict=comparison.verdict(found),
        section=Section("sides", "Side by side", tables=tuple(one for one in (settings, figures, phases) if one.rows)),
    )


def data(root: str, benches: Sequence[BenchRow], notice: str | None) -> str:
    """Measured data sets."""
    return render("data", root=root, title="Data sets", benches=[_bench(one) for one in benches], notice=notice)


def _bench(one: BenchRow) -> dict[str, Any]:
    known = {"when": when(one.started_s), "name": " ".join(one.data), "about": "", "table": None, "trouble": ""}
    try:
        record = json.loads(one.record)
        rows = tuple(_bench_rows(record))
        about = (
            f"{record['rows']:,} rows of {record['row_bytes']:,.0f} bytes in {record['files']} {record['kind']} files"
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return {**known, "trouble": f"this record is broken: {type(error).__name__}"}
    heads = ("order", "cache", "rate", "of a copy", "first batch", "pairs: block", "pairs: file")
    return {**known, "about": about, "table": Table("", heads, rows)}


def _bench_rows(record: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    yield "copy", "–", units.rate(record["copy_rows_per_s"], "samples"), "1.00", "–", "–", "–"
    for one in record["runs"]:
        yield (
            str(one["order"]),
            str(one["cache"]),
            units.rate(one["rows_per_s"], "samples"),
            *("–" if one[name] is None else f"{one[name]:.2f}" for name in ("share_of_copy",)),
            units.seconds(one["first_batch_s"]),
            *("–" if one[name] is None else f"{one[name]:.2f}" for name in ("pair_ratio", "file_pair_ratio")),
        )
