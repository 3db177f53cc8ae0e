"""What every make_data.py shares: its arguments, a progress bar, and a data set that is either whole or not there.

A data set is built in a folder beside its place and moved there with its last byte; its `dataset.json` says what it is.
"""

import argparse
import json
import math
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import psutil
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

Sizes = dict[str, Any]
Tick = Callable[[], None]

ROOM = 1.05  # a file system needs a little more than the bytes themselves


class _OneLineParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"make_data: {message}. See: make_data.py --help\n")


def make(
    case: str,
    about: str,
    plan: Callable[[float], Sizes],
    write: Callable[[Path, Sizes, int, Tick], None],
) -> None:
    """Build one case's data set.

    `plan` turns the scale into sizes, which become `dataset.json`: it must name `files` (ticks of the progress bar) and
    `bytes` (about how much room it takes). `write` fills a folder and calls its last argument once for each file.
    """
    parser = _OneLineParser(prog="make_data.py", description=about)
    parser.add_argument("--out", type=Path, default=Path("data"), help="where the data set will lie (default: ./data)")
    parser.add_argument("--scale", default="1", help="size against the small default of 1; see README.md for sizes")
    parser.add_argument("--seed", type=int, default=0, help="same seed and scale, same bytes (default: 0)")
    options = parser.parse_args()
    sizes = plan(_scale(options.scale, parser))
    told = {"case": case, "scale": float(options.scale), "seed": options.seed, **sizes}
    if options.seed < 0:
        parser.error(f"--seed is {options.seed}; expected 0 or more")
    if _is_there(options.out, told, parser):
        print(f"{options.out} already holds this data set", file=sys.stderr)
        return
    _check_room(options.out, sizes["bytes"], parser)
    _build(options.out, told, lambda folder, tick: write(folder, sizes, options.seed, tick))


def _scale(text: str, parser: argparse.ArgumentParser) -> float:
    try:
        scale = float(text)
    except ValueError:
        scale = math.nan
    if not (scale > 0 and math.isfinite(scale)):
        parser.error(f"--scale is {text}; expected a number above 0, where 1 is the small default")
    return scale


def _is_there(out: Path, told: Sizes, parser: argparse.ArgumentParser) -> bool:
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return False
    try:
        found = json.loads((out / "dataset.json").read_text())
    except (OSError, ValueError):
        parser.error(f"{out} exists and is not a data set of ours; choose another --out, or remove it")
    if found != told:
        parser.error(
            f"{out} holds {found.get('case')} at scale {found.get('scale')}, seed {found.get('seed')}; "
            "choose another --out, or remove it"
        )
    return True


def _check_room(out: Path, count_bytes: int, parser: argparse.ArgumentParser) -> None:
    existing = next(folder for folder in out.resolve().parents if folder.exists())
    free = shutil.disk_usage(existing).free
    if count_bytes * ROOM > free:
        parser.error(f"this scale takes {count_bytes / 1e9:.1f} GB and {existing} has {free / 1e9:.1f} GB free")


def _build(out: Path, told: Sizes, write: Callable[[Path, Tick], None]) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    _sweep(out)
    partial = out.with_name(f"{out.name}.partial-{os.getpid()}")
    partial.mkdir()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    try:
        with Progress(*columns, console=Console(stderr=True)) as progress:
            task = progress.add_task(f"{told['case']}: {told['bytes'] / 1e6:,.0f} MB", total=told["files"])
            write(partial, lambda: progress.advance(task))
        (partial / "dataset.json").write_text(json.dumps(told, indent=2) + "\n")
        partial.rename(out)
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _sweep(out: Path) -> None:
    """Remove what a killed run left behind; one that still runs is left alone."""
    for left in out.parent.glob(f"{out.name}.partial-*"):
        pid = left.name.rpartition("-")[2]
        if pid.isdecimal() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(left, ignore_errors=True)
