"""`stoker report`: a run that was recorded, again, in any form."""

import sys
from pathlib import Path

import click

from stoker.commands.doctor import diagnose
from stoker.ledger import Ledger


@click.command()
@click.argument("run", default="last")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the report as JSON; - is stdout.")
@click.option("--md", "md_path", type=click.Path(path_type=Path), help="Write the report as Markdown; - is stdout.")
def report(run: str, json_path: Path | None, md_path: Path | None) -> None:
    """Show what was recorded of RUN: its name, the start of its name, its directory, or `last`.

    Works on what is there, also while the run goes on or after it was killed.
    """
    from rich.console import Console

    from stoker.report import data, markdown, terminal

    directory = Ledger().find(run)
    seen, diagnosis = diagnose(directory)
    if json_path is not None:
        _write(data.dumps(diagnosis), json_path)
    if md_path is not None:
        _write(markdown.dumps(diagnosis, seen.run, seen.command), md_path)
    if json_path is None and md_path is None:
        terminal.show(diagnosis, seen.run, Console())


def _write(text: str, path: Path) -> None:
    from stoker.report import data

    if str(path) == "-":
        sys.stdout.write(text + "\n")
    else:
        data.write(text, path)
