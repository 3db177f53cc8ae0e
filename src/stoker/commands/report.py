"""`stoker report`: a run or a tuning that was recorded, again, in any form."""

import json
from pathlib import Path

import click

from stoker.commands import pages
from stoker.commands.doctor import depict
from stoker.commands.outputs import OutFile
from stoker.errors import TooFewStepsError, UsageError
from stoker.ledger import Ledger
from stoker.records.codec import decode
from stoker.records.tuning import Tuning

FORMS = {
    "--html": "Write the page with pictures: one file, opens offline.",
    "--md": "Write the report as Markdown; - is stdout.",
    "--json": "Write the report as JSON; - is stdout.",
    "--trace": "Write a few steps as a Chrome trace, for ui.perfetto.dev; - is stdout.",
}


@click.command()
@click.argument("run", default="last")
@click.option("--html", "html_path", type=OutFile(), help=FORMS["--html"])
@click.option("--md", "md_path", type=OutFile(), help=FORMS["--md"])
@click.option("--json", "json_path", type=OutFile(), help=FORMS["--json"])
@click.option("--trace", "trace_path", type=OutFile(), help=FORMS["--trace"])
def report(
    run: str, html_path: Path | None, md_path: Path | None, json_path: Path | None, trace_path: Path | None
) -> None:
    """Show what was recorded of RUN: its name, the start of its name, its directory, or `last`.

    Works on what is there, also while the run goes on or after it was killed. RUN may be a tuning too. --html needs
    the extra `report`; everything else works without.
    """
    directory = Ledger().find(run)
    paths = {"html": html_path, "md": md_path, "json": json_path, "trace": trace_path}
    wanted = {form: path for form, path in paths.items() if path is not None}
    if (directory / "tuning.json").is_file():
        _tuning(directory, wanted)
    else:
        _run(directory, wanted)


def _run(directory: Path, wanted: dict[str, Path]) -> None:
    from rich.console import Console

    from stoker.report import data, markdown, terminal, trace

    seen, diagnosis, course = depict(directory)
    if "json" in wanted:
        _write(data.dumps(diagnosis), wanted["json"])
    if "md" in wanted:
        _write(markdown.dumps(diagnosis, seen.run, seen.command), wanted["md"])
    if "trace" in wanted:
        if course.excerpt is None:
            raise TooFewStepsError(f"{diagnosis.steps} steps were seen, none of them steady; there is nothing to trace")
        _write(trace.dumps(course.excerpt, seen.run), wanted["trace"])
    if "html" in wanted:
        _write_page(pages.of_run(seen, diagnosis, course), wanted["html"])
    if not wanted:
        terminal.show(diagnosis, seen.run, Console())


def _tuning(directory: Path, wanted: dict[str, Path]) -> None:
    from rich.console import Console

    from stoker.report import data, decision

    if "trace" in wanted:
        raise UsageError(f"{directory} is a tuning, which has no timeline; --trace takes a run of the doctor")
    try:
        tuning = decode(Tuning, json.loads((directory / "tuning.json").read_text()))
    except (OSError, ValueError) as error:
        raise UsageError(f"{directory / 'tuning.json'} cannot be read: {error}") from error
    command = next((row.command for row in Ledger().runs() if row.directory.resolve() == directory.resolve()), ())
    record = decision.markdown(tuning)
    if "json" in wanted:
        _write(data.dumps(tuning), wanted["json"])
    if "md" in wanted:
        _write(record, wanted["md"])
    if "html" in wanted:
        _write_page(pages.of_tuning(tuning, directory.name, command, record), wanted["html"])
    if not wanted:
        decision.show(tuning, Console())


def _write(text: str, path: Path) -> None:
    from stoker.report import data

    data.write(text, path)


def _write_page(text: str, path: Path) -> None:
    from stoker.report import page

    page.write(text, path)
