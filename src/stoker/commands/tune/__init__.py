"""`stoker tune`: try knobs one at a time against the user's own configuration, keep what is proven, write it down."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stoker.commands.outputs import OutFile
from stoker.errors import StokerError, UsageError
from stoker.ledger import HOME, Ledger, Row

if TYPE_CHECKING:  # numpy and the trials are loaded when something is tried, so that --help is fast
    from collections.abc import Callable

    from stoker.commands.tune.investigate import Investigation
    from stoker.commands.tune.request import Request
    from stoker.records.diagnosis import Diagnosis
    from stoker.records.observed import Observation
    from stoker.records.tuning import Tuning
    from stoker.trial.contest import Candidate, Contest

INTERRUPTED = 130
WITH_RESUME = {"resume", "json_path", "budget", "max_ram", "command"}
"""What may be said anew of a tuning that is gone on with; the rest is as it was asked for first."""


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--budget", default="10m", show_default=True, metavar="TIME", help="How long to try, in all.")
@click.option(
    "--knob",
    "knobs",
    multiple=True,
    metavar="KNOB=V,V",
    help="Try these values first. A knob of docs/knobs.md, a {placeholder} of the command (its first value is the "
    "reference), or a key of --config. batch_size=auto looks for the fastest that is safe. Repeatable.",
)
@click.option("--only", is_flag=True, help="Try nothing but the knobs that were named.")
@click.option("--keep-results", is_flag=True, help="Try only knobs that cannot change what is trained.")
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A YAML, JSON or TOML file that the command reads; trials get a changed copy, the result is a patch.",
)
@click.option(
    "--steady",
    metavar="TIME",
    help="How long each run is watched once it trains. Default: a fortieth of the budget, from 1.5 to 6 s.",
)
@click.option("--max-ram", metavar="SIZE", help="The most memory one trial may take. Default: 80 % of what is free.")
@click.option("--cold", is_flag=True, help="Drop the data's pages from memory before every run, on both sides.")
@click.option("--goal", metavar="epoch=TIME", help="A target for the epoch; says whether it can be reached.")
@click.option("--findings", metavar="RUN", help="Plan from this run of the doctor, instead of a new one.")
@click.option(
    "--device-profile",
    metavar="RUN",
    help="Replay the device of a recorded run (or a profile as JSON): tune the loader without that device.",
)
@click.option(
    "--resume",
    is_flag=False,
    flag_value="last",
    metavar="[RUN]",
    help="Go on with an interrupted tuning, or with a larger --budget one that is done; no COMMAND.",
)
@click.option("--json", "json_path", type=OutFile(), help="Also write the result as JSON; - is stdout.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Directory for the records.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def tune(
    context: click.Context,
    /,
    resume: str | None,
    json_path: Path | None,
    out: Path | None,
    command: tuple[str, ...],
    **given: object,
) -> int:
    """Try knobs against your own configuration, keep what is proven faster. COMMAND is how you start it:

    \b
        stoker tune --budget 5m -- python train.py
        stoker tune --knob num_workers=0,2,4 --keep-results -- python train.py
        stoker tune --knob batch_size=32,64 -- python train.py --batch-size {batch_size}
        stoker tune --config exp.yaml --knob train.batch_size=32,64 -- python train.py --config exp.yaml
        stoker tune --resume

    First the doctor looks for causes; what to try comes from them and from a simulation of your loader, largest
    predicted gain first, until nothing left is predicted to bring 3 % or the budget is spent. One knob at a time,
    reference and candidate interleaved in random order in fresh processes, each within a budget of memory and time; the
    answer is a ratio of rates with a 95 % interval. Your checkpoints and your config file are not touched. What is kept
    goes into stoker.toml, for `stoker run --with stoker.toml`; why, into decision.md.

    Exit codes: 0 done, 2 wrong usage, 3 the command fails as it is, 4 too few steps, 5 unsafe, 130 interrupted.
    """  # noqa: D301  click's own mark is a backspace
    from stoker.observe.restore import recover

    recover(HOME)
    ledger = Ledger()
    if resume is not None:
        typed = click.core.ParameterSource.COMMANDLINE
        said = {name for name in context.params if context.get_parameter_source(name) is typed}
        row, request = _resumed(ledger, resume, command, {name: given.get(name) for name in said - {"resume"}})
        with _held(row):
            recover(row.directory)
            request.write(row.directory)
            print(f"stoker: going on with {row.run}", file=sys.stderr)
            return _run(ledger, row, request, json_path)
    request = _requested(command, given)
    row = ledger.open_run(request.words, out)
    with _held(row):
        request.write(row.directory)
        print(f"stoker: tuning for {given['budget']}; records go to {row.directory}", file=sys.stderr)
        return _run(ledger, row, request, json_path)


@contextmanager
def _held(row: Row) -> Iterator[None]:
    """One tuner for each tuning: a second one would remove what the first is working with."""
    with (row.directory / "lock").open("w") as lock:
        try:
            import fcntl

            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:
            pass  # no locks on this system
        except OSError:
            raise UsageError(f"{row.run} is still being tuned by another process; wait for it, or end that") from None
        yield


def _requested(words: Sequence[str], given: dict[str, object]) -> "Request":
    """The command line, checked as a whole before anything is written."""
    from stoker.commands.tune.request import Request, goal_seconds, steady_seconds, wishes
    from stoker.observe.launch import resolve
    from stoker.sizes import parse_bytes, parse_seconds
    from stoker.trial.command import Command

    config, max_ram, knobs = given["config"], given["max_ram"], given["knobs"]
    assert isinstance(knobs, tuple)
    command = Command(resolve(words), config if isinstance(config, Path) else None)
    budget_s = parse_seconds(str(given["budget"]))
    wanted = wishes(command, knobs, keep_results=bool(given["keep_results"]))
    if given["only"] and not (wanted.asked or wanted.search):
        raise UsageError("--only was given, but no --knob with a value to try; write --knob num_workers=0,2,4")
    return Request(
        words=command.words,
        start=wanted.start,
        asked=wanted.asked,
        search=wanted.search,
        budget_s=budget_s,
        steady_s=steady_seconds(None if given["steady"] is None else str(given["steady"]), budget_s),
        max_ram_bytes=None if max_ram is None else parse_bytes(str(max_ram)),
        goal_s=goal_seconds(None if given["goal"] is None else str(given["goal"])),
        keep_results=bool(given["keep_results"]),
        only=bool(given["only"]),
        cold=bool(given["cold"]),
        config=None if config is None else str(config),
        device_profile=_profile(given["device_profile"]),
        findings=_findings(given["findings"]),
    )


def _findings(name: object) -> str | None:
    """Where the run is that the plan is made from; said now if it is none."""
    if name is None:
        return None
    from stoker.observe.readback import about

    place = Ledger().find(str(name)).resolve()
    about(place)
    return str(place)


def _profile(name: object) -> str | None:
    """Where the profile is; one is made of a recorded run."""
    if name is None:
        return None
    from stoker.commands.tune.profile import find_profile

    return str(find_profile(str(name)).resolve())


def _resumed(ledger: Ledger, name: str, words: Sequence[str], said: dict[str, object]) -> tuple[Row, "Request"]:
    """The tuning to go on with, and what was asked for; `said` is what stands beside --resume."""
    from stoker.commands.tune.request import FILE, Request

    rows = [row for row in ledger.runs() if (row.directory / FILE).is_file()]
    if name == "last":
        rows = [row for row in rows if _goes_on(row) or (row.state == "done" and "budget" in said)]
    else:
        place = ledger.find(name).resolve()
        rows = [row for row in rows if row.directory.resolve() == place]
    if not rows:
        raise UsageError("no interrupted tuning is there to go on with; start one: stoker tune -- python train.py")
    row = rows[0]
    if words:
        raise UsageError(f"--resume goes on with the command of {row.run}; leave the command out")
    other = sorted(opts for name, opts in _options().items() if name in set(said) - WITH_RESUME)
    if other:
        raise UsageError(f"--resume goes on as {row.run} was asked for; leave {other[0]} out")
    before = Request.read(row.directory)
    request = _changed(before, said)
    if row.state == "done" and request.budget_s <= before.budget_s:
        raise UsageError(
            f"{row.run} is done; see {row.directory / 'decision.md'}, or go on with a --budget of more than "
            f"{before.budget_s:.0f} s"
        )
    return row, request


def _options() -> dict[str, str]:
    """How each option is written."""
    return {str(one.name): one.opts[0] for one in tune.params}


def _goes_on(row: Row) -> bool:
    """True if there is something to go on with: one that failed at once has measured nothing."""
    journal = row.directory / "journal.jsonl"
    return row.state in ("interrupted", "running") or (row.state == "failed" and journal.exists())


def _changed(request: "Request", said: dict[str, object]) -> "Request":
    """What was asked for, with another budget or limit."""
    from stoker.sizes import parse_bytes, parse_seconds

    if "budget" in said:
        request = replace(request, budget_s=parse_seconds(str(said["budget"])))
    if "max_ram" in said:
        request = replace(request, max_ram_bytes=parse_bytes(str(said["max_ram"])))
    return request


def _run(ledger: Ledger, row: Row, request: "Request", json_path: Path | None) -> int:
    from stoker.commands.tune.investigate import Investigation, judge_at_looks
    from stoker.commands.tune.live import Live
    from stoker.trial.contest import Contest
    from stoker.trial.measure import Manner

    live = Live(request.budget_s)
    manner = Manner(request.steady_s, files=request.cold, device_profile=request.device_profile)
    contest = Contest(
        request.command,
        row.directory,
        manner,
        budget_s=request.budget_s,
        max_ram_bytes=request.max_ram_bytes,
        judge=judge_at_looks,
        listener=live,
        start=request.start,
    )
    live.contest = contest

    def noted(number: int, one: "Candidate") -> None:
        from stoker.commands.tune.record import trial
        from stoker.report import data

        ledger.add_trial(
            row.run, number, one.verdict[0], data.dumps(trial(investigation.found, number, one, contest.command))
        )

    def diagnosed(budget_s: float) -> "tuple[Observation, Diagnosis] | None":
        return _diagnose(contest, request, budget_s, live.tell)

    investigation = Investigation(contest, request, diagnosed, live.tell, noted)
    state = "failed"
    failed: StokerError | None = None
    try:
        investigation.run()
        state = "done"
    except KeyboardInterrupt:
        state = "interrupted"
        live.clear()
        print(f"stoker: stopped; go on with: stoker tune --resume {row.run}", file=sys.stderr)
    except StokerError as error:
        if not investigation.found.done:  # nothing was tried
            raise
        failed = error
        live.clear()
        print(f"stoker: go on with: stoker tune --resume {row.run}", file=sys.stderr)
    finally:
        live.clear()
        ledger.close_run(row.run, state, None, None)
    if investigation.found.first is not None:
        _publish(investigation, request, row, json_path, interrupted=state != "done")
    if failed is not None:
        raise failed
    return 0 if state == "done" else INTERRUPTED


def _diagnose(
    contest: "Contest", request: "Request", budget_s: float, tell: "Callable[[str], None]"
) -> "tuple[Observation, Diagnosis] | None":
    """The doctor's own run, guarded; None where it could not judge, and then nothing but the simulation plans."""
    from stoker.commands.doctor import diagnose

    try:
        seen, said = diagnose(Path(request.findings) if request.findings else contest.examine(budget_s))
    except StokerError as error:
        tell(f"no diagnosis, so that nothing but the simulation plans: {error}")
        return None
    if not said.steps:
        tell("no diagnosis, so that nothing but the simulation plans: the doctor saw no step")
        return None
    return seen, said


def _publish(
    investigation: "Investigation", request: "Request", row: Row, json_path: Path | None, *, interrupted: bool
) -> None:
    from rich.console import Console

    from stoker.commands import pages
    from stoker.commands.tune.record import build
    from stoker.records.tuning import Files
    from stoker.report import data, decision

    directory, command = row.directory, investigation.contest.command
    files = Files(str(directory / "decision.md"), str(directory / "stoker.toml"), pages.place_of(directory))
    tuning = build(investigation.found, investigation.contest, request, files, row.started_s, interrupted=interrupted)
    keys = command.config_keys(tuning.final.knobs)
    if keys and command.config is not None:
        tuning = _with_patch(tuning, directory)
        changed = command.config.changed(keys)
        patch = decision.patch(command.config.path, command.config.text, changed)
        (directory / "config.patch").write_text(patch)
    fills = {name: value for name, value in tuning.final.knobs.items() if name in command.placeholders}
    (directory / "stoker.toml").write_text(decision.toml(tuning, {**request.start, **fills}, keys))
    (directory / "decision.md").write_text(decision.markdown(tuning))
    text = data.dumps(tuning)
    data.write(text, directory / "tuning.json")
    if json_path is not None:
        data.write(text, json_path)
    decision.show(tuning, Console(stderr=True))
    pages.offer_tuning(tuning, command.words, directory)


def _with_patch(tuning: "Tuning", directory: Path) -> "Tuning":
    return replace(tuning, files=replace(tuning.files, config_patch=str(directory / "config.patch")))
