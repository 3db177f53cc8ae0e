"""`stoker doctor`: why is it slow? Observe, attribute, forecast, report."""

import dataclasses
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import click

from stoker.advise import advise
from stoker.attribute import attribute
from stoker.attribute.course import course
from stoker.attribute.summary import counted, stolen_share, summarise, within_reach
from stoker.commands import pages
from stoker.commands.outputs import OutFile
from stoker.diagnose import diagnose as judge
from stoker.errors import ScriptFailedError, StokerError, TooFewStepsError, UsageError
from stoker.ledger import HOME, Ledger, Row
from stoker.predict import epoch_parts, forecast
from stoker.records.attributed import Attribution, Course
from stoker.records.diagnosis import Diagnosis
from stoker.records.observed import Observation
from stoker.sizes import parse_seconds

NEEDED_STEPS = 4
"""Fewer steps than this are not judged."""
INTERRUPTED = 130


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--steps", type=click.IntRange(1), help="Training steps to see in each epoch. Default: chosen by time.")
@click.option("--whole", is_flag=True, help="Let every epoch run to its end, and write checkpoints where they belong.")
@click.option("--observe-only", is_flag=True, help="Only watch: no experiments inside the run, so no ceilings.")
@click.option(
    "--budget",
    default="60s",
    metavar="TIME",
    show_default=True,
    help="How long to watch the training; experiments take at most half of it.",
)
@click.option("--json", "json_path", type=OutFile(), help="Also write the report as JSON; - is stdout.")
@click.option("--html", "html_path", type=OutFile(dash=False), help="Also write the page to this file.")
@click.option("--no-html", is_flag=True, help="Write no page with pictures.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Directory for the run's records.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def doctor(
    steps: int | None,
    whole: bool,
    observe_only: bool,
    budget: str,
    json_path: Path | None,
    html_path: Path | None,
    no_html: bool,
    out: Path | None,
    command: tuple[str, ...],
) -> int:
    """Find out where the time of a training goes. COMMAND is how you start it, after two dashes:

    \b
        stoker doctor -- python train.py --lr 0.1
        stoker doctor -- torchrun --nproc-per-node 2 train.py
        stoker doctor train.py

    Nothing in the script has to change. By default each epoch ends early once enough of it was seen, checkpoints go to
    a scratch file, and the run ends after a few short epochs: a minute is enough to forecast hours. Experiments inside
    the run tell a cause from its symptom; the loop still gets every batch once and in order. Everything is kept in
    .stoker/ for `stoker report`, with the extra `report` also as a page with pictures, report.html.

    Exit codes: 0 done, 2 wrong usage, 3 the script failed, 4 too few steps to judge, 130 interrupted.
    """  # noqa: D301  click's own mark is a backspace
    from stoker.observe.launch import launch, resolve
    from stoker.observe.options import BUDGET_SHARE, Options
    from stoker.observe.restore import recover

    budget_s, words = parse_seconds(budget), resolve(command)
    recover(HOME)
    ledger = Ledger()
    row = ledger.open_run(words, out)
    options = Options(whole=whole, steps=steps, budget_s=budget_s, path_before=_path_before(), probe=not observe_only)
    live = Live(row, budget_s * BUDGET_SHARE if options.probe and not whole else 0.0)
    with _report_first():
        ended = launch(words, row.directory.resolve(), options, live.tick)
        live.clear()
        seen, named, diagnosis = _follow(row.directory)
        went = course(seen, seen.tracks[0], named)
        problem = _problem(seen, diagnosis, ended.code, steps)
        ledger.close_run(row.run, _state(ended.interrupted, problem), diagnosis.verdict, None)
        _report(diagnosis, row, json_path)
        _keep_columns(seen, named, row)
    if diagnosis.steps and not no_html:
        pages.offer_run(seen, diagnosis, went, [row.directory / pages.NAME, *([html_path] if html_path else [])])
    if ended.interrupted:
        return INTERRUPTED
    if problem is not None:
        raise problem
    return 0


@contextmanager
def _report_first() -> Iterator[None]:
    """A Ctrl-C that the script did not live to hear does not cost the report; a second one does."""

    def heard(*_: object) -> None:
        signal.signal(signal.SIGINT, before)
        print("stoker: the script has ended, this is its report; Ctrl-C again to do without", file=sys.stderr)

    before = signal.getsignal(signal.SIGINT)
    if before != signal.SIG_IGN:  # as a shell has it for what is in the background
        signal.signal(signal.SIGINT, heard)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def diagnose(directory: Path) -> tuple[Observation, Diagnosis]:
    """What there is of a run, in the words of the contract: the doctor's arrow."""
    seen, _, diagnosis = _recorded(directory)
    return seen, diagnosis


def depict(directory: Path) -> tuple[Observation, Diagnosis, Course]:
    """The same, and how the run went over time: what pictures are drawn from."""
    seen, named, diagnosis = _recorded(directory)
    return seen, diagnosis, course(seen, seen.tracks[0], named)


def _recorded(directory: Path) -> tuple[Observation, Attribution, Diagnosis]:
    """The same of records that have lain on a disk, where anything may have happened to them."""
    try:
        return _follow(directory)
    except (LookupError, ValueError, TypeError, AttributeError, OverflowError) as error:
        raise UsageError(f"the records in {directory} are damaged ({type(error).__name__}: {error})") from error


def _follow(directory: Path) -> tuple[Observation, Attribution, Diagnosis]:
    from stoker.observe.readback import read

    seen = read(directory)
    track = seen.tracks[0]
    named = attribute(track)
    said = summarise(
        seen, track, named, forecast(named, track.epochs_planned, stolen_share(seen.meters), track.steps_planned)
    )
    said = dataclasses.replace(said, epoch_parts=_parts(named), probes=track.probes)
    said = within_reach(judge(seen, track, named, said))
    if said.steps < _needed(_asked(directory)):
        said = _unjudged(said)
    return seen, named, advise(said, seen)


def _unjudged(said: Diagnosis) -> Diagnosis:
    """Too few steps say nothing, except where the cause is what ended them."""
    fatal = tuple(one for one in said.findings if one.cause == "shm-small")
    return dataclasses.replace(said, findings=fatal, verdict=fatal[0].cause if fatal else None, bound=None)


def _needed(asked: int | None) -> int:
    """Steps that are judged: who asks for fewer means it."""
    return min(NEEDED_STEPS, asked or NEEDED_STEPS)


def _asked(directory: Path) -> int | None:
    from stoker.observe.options import Options

    try:
        return Options.read(directory).steps
    except (OSError, ValueError):  # records may be damaged, or of another version
        return None


def _parts(named: Attribution) -> dict[str, float] | None:
    parts = epoch_parts(named)
    if parts is None:
        return None
    fields = dataclasses.asdict(parts)
    return {name.removesuffix("_s"): value for name, value in fields.items() if name.endswith("_s")}


def _state(interrupted: bool, problem: StokerError | None) -> str:
    if interrupted:
        return "interrupted"
    if problem is None:
        return "done"
    return "short" if isinstance(problem, TooFewStepsError) else "failed"


def _path_before() -> str | None:
    return os.environ.get("PYTHONPATH")


def _problem(seen: Observation, diagnosis: Diagnosis, code: int, steps: int | None) -> StokerError | None:
    """Why there is no full diagnosis, if so."""
    if code and not seen.ended_by_doctor:
        return ScriptFailedError(_failure(code, seen))
    needed = _needed(steps)
    if diagnosis.steps >= needed:
        return None
    if not seen.attached:
        return TooFewStepsError(f"the script ran, but Stoker could not attach to it{_reason(seen)}; no step was seen")
    if not diagnosis.steps:
        return TooFewStepsError(
            "no training loop was seen: no backward pass and no optimizer step. "
            "Is this the script that trains, and does it train with torch?"
        )
    return TooFewStepsError(
        f"{counted(diagnosis.steps, 'step')} in {counted(diagnosis.epochs, 'epoch')} "
        f"{'was' if diagnosis.steps == 1 else 'were'} seen; at least {needed} are needed to judge. "
        "Let the script train longer, or on more data."
    )


def _failure(code: int, seen: Observation) -> str:
    """One sentence on how the script failed; its own words stand above."""
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    cut = any(track.cuts for track in seen.tracks)
    hint = " Its epochs were ended early; if it cannot bear that, try --whole." if cut else ""
    return f"the script {how}; its own output is above.{hint}"


def _reason(seen: Observation) -> str:
    words = seen.command[1:]
    if any(word in ("-I", "-E", "-S") for word in words):
        return " (python -I, -E and -S switch off what it attaches by)"
    return f" ({'; '.join(seen.trouble)})" if seen.trouble else ""


def _report(diagnosis: Diagnosis, row: Row, json_path: Path | None) -> None:
    """Everything of ours goes to stderr: stdout is the script's, and what was asked for there comes after it."""
    from rich.console import Console

    from stoker.report import data, terminal

    text = data.dumps(diagnosis)
    kept = row.directory / "diagnosis.json"
    try:
        data.write(text, kept)
    except UsageError as error:  # a disk that has become full must not take the report away
        with suppress(OSError):
            kept.unlink(missing_ok=True)
        print(f"stoker: the report could not be kept: {error}", file=sys.stderr)
    console = Console(stderr=True)
    if diagnosis.steps:
        terminal.show(diagnosis, row.run, console)
    elif diagnosis.findings:
        terminal.show_verdict(diagnosis, row.run, console)
    else:
        terminal.show_notes(diagnosis, console)
    if json_path is not None:
        data.write(text, json_path)


def _keep_columns(seen: Observation, named: Attribution, row: Row) -> None:
    """Steps and meters as tables, beside the rest of the run."""
    from stoker.report import columns

    try:
        columns.write(named.steps, seen.meters, seen.start_ns, row.directory)
    except OSError as error:
        print(f"stoker: the tables of steps and meters could not be kept: {error}", file=sys.stderr)


class Live:
    """One line about how far the run is: rewritten on a terminal, every few seconds when piped."""

    PIPED_S = 10.0

    def __init__(self, row: Row, tries_s: float) -> None:
        from stoker.observe.progress import Progress

        self._progress = Progress(row.directory)
        self._directory = row.directory
        self._started = self._said = time.monotonic()
        self._tty = sys.stderr.isatty()
        tries = f"; experiments take at most {tries_s:.0f} s" if tries_s else ""
        print(f"stoker: watching; records go to {row.directory}{tries}", file=sys.stderr)

    def tick(self) -> None:
        """Called about twice a second."""
        now = time.monotonic()
        if not self._tty and now - self._said < self.PIPED_S:
            return
        self._said = now
        self._progress.update()
        seen = f"{self._progress.batches} batches, {self._progress.steps} optimizer steps"
        text = f"stoker: {now - self._started:.0f} s, {seen}{self._experiment()}"
        print(f"\r\x1b[K{text}\r" if self._tty else text, end="" if self._tty else "\n", file=sys.stderr, flush=True)

    def _experiment(self) -> str:
        """What is being tried right now, and what it will take, as the child said beforehand."""
        try:
            name, planned_s = (self._directory / "probing").read_text().split()
        except (OSError, ValueError):
            return ""
        return f"; trying {name}, about {planned_s} s"

    def clear(self) -> None:
        """Leave the terminal clean."""
        if self._tty:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
