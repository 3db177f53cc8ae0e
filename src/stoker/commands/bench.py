"""`stoker bench`: a data set's ceilings, and the quality of its shuffle."""

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stoker.commands.numbers import Finite, sides
from stoker.commands.outputs import OutFile

if TYPE_CHECKING:
    from stoker.loader.ceilings import Ceilings, Run


@click.command()
@click.argument("data", nargs=-1, required=True)
@click.option("--batch-size", "-b", default=256, show_default=True, help="Samples a batch.")
@click.option("--shuffle/--no-shuffle", default=True, show_default=True, help="Also measure shuffled orders.")
@click.option("--columns", help="Only these fields, separated by commas.")
@click.option("--label", help="The field whose entropy is measured; default: one called label, target, class or y.")
@click.option("--size", callback=sides("pixels, such as 224, or 224,320"), help="Of images: what they are resized to.")
@click.option(
    "--patch",
    callback=sides("a number for each axis, such as 72,136,136"),
    help="Of volumes: what is taken of them, such as 72,136,136.",
)
@click.option("--tokenizer", type=click.Path(exists=True), help="Of text: a tokenizer.json.")
@click.option("--column", default="text", show_default=True, help="Of text: the key (or column) that holds it.")
@click.option("--length", type=click.IntRange(1), default=512, show_default=True, help="Of text: tokens a row.")
@click.option("--memory", default="2GiB", show_default=True, help="The loader's budget.")
@click.option("--threads", type=click.IntRange(1), help="Threads; default: one per core.")
@click.option("--seconds", type=Finite(0.1), default=3.0, show_default=True, help="For each measurement.")
@click.option("--json", "json_path", type=OutFile(), help="Also write it as JSON; - is stdout.")
def bench(
    data: tuple[str, ...],
    batch_size: int,
    shuffle: bool,
    columns: str | None,
    label: str | None,
    memory: str,
    threads: int | None,
    seconds: float,
    json_path: Path | None,
    **shape: Any,
) -> None:
    """Measure how fast DATA can be loaded, and how well it is shuffled. DATA: files, directories or globs.

    \b
        stoker bench 'shards/*.npy' --batch-size 750
        stoker bench events/ --columns time,charge --json bench.json
        stoker bench photos/train --size 224
        stoker bench 'scans/*.zarr' --patch 72,136,136 --batch-size 4
        stoker bench notes.jsonl --tokenizer tok.json --length 512

    One table: a plain copy of as many bytes (the limit of this machine); in file order, shuffled in windows, fully
    random; cold (files taken out of memory first) and warm, or from a remote store as it comes; pairs of a batch from
    the same block or file against a uniform shuffle, where 1 is as good as it gets; and the entropy of the label inside
    a batch.
    """  # noqa: D301  click's own mark is a backspace
    from rich.console import Console

    from stoker.loader.ceilings import Plan, measure
    from stoker.loader.source import open as open_source
    from stoker.report import data as report

    names = None if columns is None else [name.strip() for name in columns.split(",")]
    source = open_source(data[0] if len(data) == 1 else list(data), columns=names, **_shaped(**shape))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    progress = Console(stderr=True)
    with progress.status("opening") as status:

        def said(text: str) -> None:
            status.update(text)
            if not progress.is_terminal:
                progress.print(f"stoker: measuring: {text}")

        found = measure(source, Plan(batch_size, shuffle, memory, threads or cores, seconds, label), said)
    text = json.dumps(_encoded(found), indent=1)
    if json_path is not None:
        report.write(text, json_path)
    if not report.is_stdout(json_path):
        _show(found)
    _keep(data, text)


def _shaped(
    size: tuple[int, ...] | None, patch: tuple[int, ...] | None, tokenizer: str | None, column: str, length: int
) -> dict[str, Any]:
    """What makes rows of data that have none by themselves."""
    if tokenizer is not None:
        return {"tokenizer": tokenizer, "column": column, "length": length}
    if patch is not None:
        return {"patch": patch}
    return {} if size is None else {"size": size if len(size) > 1 else size[0]}


def _keep(data: tuple[str, ...], text: str) -> None:
    """For the dashboard; what cannot be kept is said, and was shown."""
    import sqlite3

    from stoker.errors import UsageError
    from stoker.ledger import Ledger

    try:
        Ledger().add_bench(data, text)
    except (OSError, sqlite3.Error, UsageError) as error:
        print(f"stoker: the result was not kept: {error}", file=sys.stderr)


def _encoded(found: "Ceilings") -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(found)


def _show(found: "Ceilings") -> None:
    from rich.console import Console
    from rich.table import Table

    title = (
        f"{found.rows:,} rows of {found.row_bytes:,.0f} bytes in {found.files} {found.kind} file"
        f"{'s' * (found.files != 1)}, batches of {found.batch_size}, {found.threads} threads"
    )
    table = Table("order", "cache", "samples/s", "of a copy", "first batch", title=title, title_justify="left")
    for name in ("pairs: block", "file", *(["label entropy"] if found.label else [])):
        table.add_column(name, justify="right")
    table.add_row("copy", "-", f"{found.copy_rows_per_s:,.0f}", "1.00", "-", "-", "-", *_entropy(found, None))
    for run in found.runs:
        table.add_row(*_cells(found, run))
    # Piped, the table keeps its width: a wrapped table is of no use to anybody.
    console = Console()
    (console if console.is_terminal else Console(width=120)).print(table)


def _cells(found: "Ceilings", run: "Run") -> list[str]:
    rate = "stays in memory" if run.rows_per_s is None else f"{run.rows_per_s:,.0f}"
    first = "-" if run.first_batch_s is None else f"{run.first_batch_s * 1000:,.0f} ms"
    cells = [
        run.order,
        run.cache,
        rate,
        _two(run.share_of_copy),
        first,
        _two(run.pair_ratio),
        _two(run.file_pair_ratio),
    ]
    return cells + _entropy(found, run)


def _entropy(found: "Ceilings", run: "Run | None") -> list[str]:
    """The run's entropy beside a uniform shuffle's, in bits."""
    if found.label is None:
        return []
    bits = found.label_entropy_uniform_bits if run is None else run.label_entropy_bits
    return [f"{_two(bits)}{' uniform' * (run is None)}"]


def _two(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
