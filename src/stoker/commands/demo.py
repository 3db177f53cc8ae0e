"""`stoker demo`: one of the five cases, end to end."""

import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Container
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

import stoker
from stoker.commands.numbers import Finite
from stoker.errors import MissingExtraError, ScriptFailedError, TooFewStepsError, UsageError

ABOUT = {
    "records": "32 M fixed-size records in memory-mapped shards: the epoch that could not be under 20 minutes",
    "volumes": "3-D volumes read whole for one patch each: 18 s a step",
    "events": "ragged events in Parquet files: shuffling 140 times slower than not",
    "images": "one object for each image in a bucket: the first epoch three times slower than the second",
    "text": "25 short texts, tokenised again at every step: a device 83 % idle",
}
NEEDS = {
    "records": {},
    "volumes": {"tifffile": "volumes", "uvicorn": "ui"},
    "events": {},
    "images": {"PIL": "images", "uvicorn": "ui"},
    "text": {"tokenizers": "text"},
}
STOKER = [sys.executable, "-m", "stoker"]
DOCTOR_CODES = (0, TooFewStepsError.exit_code)  # a tiny --scale may be too little to judge; the rest still holds
TUNE_CODES = (*DOCTOR_CODES, UsageError.exit_code)  # so may the budget be for one comparison, on a busy machine
STEADY = "2s"  # of each run that tune compares: enough for the small cases, and many runs fit the budget
STOP_LIMIT_S = 30.0  # the doctor still writes what it saw; ended before that, it would leave the training behind


@dataclass(frozen=True)
class Demo:
    """One case on its way through the demo: where its scripts are, and where what they write goes."""

    case: str
    scripts: Path
    home: Path
    scale: float
    tune_budget: str

    @property
    def has_fix(self) -> bool:
        """Whether the case has a fixed script already."""
        return (self.scripts / "train_fixed.py").exists()


@click.command()
@click.argument("case", type=click.Choice(list(ABOUT)), default="records")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("stoker-demo"),
    show_default="./stoker-demo",
    help="Where the data set and the runs go, in a folder named after the case.",
)
@click.option(
    "--scale",
    type=Finite(min=0, min_open=True),
    default=1.0,
    show_default=True,
    help="Size of the data set against the small default; the case's README.md says what that is.",
)
@click.option("--tune-budget", default="2m", show_default=True, help="How long to tune; 0 leaves it out.")
def demo(case: str, out: Path, scale: float, tune_budget: str) -> None:
    """Run one of the five cases, end to end.

    Makes its data, trains as slowly as its note says under the doctor, tunes that, trains fixed, and compares.

    CASE is records (the default), volumes, events, images or text.
    """
    _check_extras(case)
    run = Demo(case, examples() / case, out / case, scale, tune_budget)
    click.echo(f"{case}: {ABOUT[case]}", err=True)
    for step in STEPS:
        step(run)


def examples() -> Path:
    """The cases' scripts: those of the checkout that Stoker runs from, else those that came with the wheel."""
    package = Path(stoker.__file__).resolve().parent
    for folder in (package.parents[1] / "examples", package / "_examples"):
        if (folder / "folder.py").exists():
            return folder
    raise UsageError(f"the cases are missing beside {package}; install Stoker again")


def _check_extras(case: str) -> None:
    for module, extra in NEEDS[case].items():
        if find_spec(module) is None:
            raise MissingExtraError(module, extra)


def make_data(run: Demo) -> None:
    """Make the small data set, or keep the one that is there."""
    _script(run, "make_data.py", "--out", str(run.home / "data"), "--scale", str(run.scale))


def train_slow(run: Demo) -> None:
    """Train the way the note's authors did."""
    _run(run, "train.py", _slow(run, "before"))


def diagnose(run: Demo) -> None:
    """Why is it slow? The same command under the doctor, which puts back what it writes over."""
    command = [*STOKER, "doctor", "--json", str(run.home / "doctor.json")]
    command += ["--html", str(run.home / "report.html")]
    _run(run, "the doctor", [*command, "--", *_slow(run, "before")], DOCTOR_CODES)


def tune(run: Demo) -> None:
    """Try knobs on the slow script, script untouched."""
    if run.tune_budget == "0":
        return
    command = [*STOKER, "tune", "--findings", "last", "--budget", run.tune_budget, "--steady", STEADY, "--keep-results"]
    command += ["--json", str(run.home / "tune.json")]
    _run(run, "tune", [*command, "--", *_slow(run, "tuned")], TUNE_CODES)


def train_fixed(run: Demo) -> None:
    """Train with the cause removed."""
    if run.has_fix:
        _script(run, "train_fixed.py", "--data", str(run.home / "data"), "--out", str(run.home / "after"))


def compare(run: Demo) -> None:
    """Print both against what the device could do."""
    from rich.console import Console
    from rich.table import Table

    before = _metrics(run.home / "before")
    after = _metrics(run.home / "after") if run.has_fix else None
    # A fix may also spare the device work, such as copies of wider types: the ceiling is that of the leaner script.
    device_step_s = min(metrics["device_step_s"] for metrics in (before, after) if metrics is not None)
    ceiling = before["samples_per_s"] * before["step_s"] / device_step_s
    table = Table("", "samples/s", "ms a step", "waiting for data", title=f"{run.case}, on the simulated accelerator")
    for name, metrics in (("train.py", before), ("train_fixed.py", after)):
        if metrics is not None:
            rate, step_s, wait_share = (metrics[key] for key in ("samples_per_s", "step_s", "wait_share"))
            table.add_row(name, f"{rate:,.1f}", f"{step_s * 1e3:,.1f}", f"{wait_share:.0%}")
    table.add_row("ceiling of the device", f"{ceiling:,.1f}", f"{device_step_s * 1e3:,.1f}", "0%")
    Console().print(table)
    if after is None:
        print(
            f"There is no fixed script yet; the device could go {ceiling / before['samples_per_s']:.1f} times as fast."
        )
    else:
        gain, reached = after["samples_per_s"] / before["samples_per_s"], after["samples_per_s"] / ceiling
        print(f"{gain:.1f} times as fast, at {reached:.0%} of the device's ceiling.")
    if (page := run.home / "report.html").exists():
        print(f"The doctor's report with pictures is {page}.")
    print(f"Data and runs are in {run.home}, Stoker's records in .stoker; the story is {run.scripts / 'README.md'}.")


STEPS: tuple[Callable[[Demo], None], ...] = (make_data, train_slow, diagnose, tune, train_fixed, compare)


def _slow(run: Demo, out: str) -> list[str]:
    """The slow training as a user would start it."""
    where = ["--data", str(run.home / "data"), "--out", str(run.home / out)]
    return [sys.executable, str(run.scripts / "train.py"), *where]


def _script(run: Demo, name: str, *arguments: str) -> None:
    _run(run, name, [sys.executable, str(run.scripts / name), *arguments])


def _run(run: Demo, name: str, command: list[str], fine: Container[int] = (0,)) -> None:
    """Run a command to its end; it does not outlive this one."""
    click.echo(f"\n$ {shlex.join(command).replace(sys.executable, 'python')}", err=True)
    process = subprocess.Popen(command)
    try:
        code = process.wait()
    except BaseException:
        _end(process)
        raise
    if code in fine:
        return
    if code == UsageError.exit_code:
        raise UsageError(f"{name} of {run.case} could not start; its own line above says why")
    raise ScriptFailedError(f"{name} of {run.case} ended with code {code}; what it said is above")


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Ctrl-C reached the script too and lets it clean up; what does not end soon is ended."""
    try:
        process.wait(STOP_LIMIT_S if process.poll() is None else 0)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        process.kill()
        process.wait()


def _metrics(folder: Path) -> dict[str, Any]:
    found = json.loads((folder / "metrics.json").read_text())
    assert isinstance(found, dict)
    return found
