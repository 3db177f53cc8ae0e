"""A tuning for people: the decision record as Markdown, the kept knobs as TOML, a table for the terminal."""

import json
import shlex
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from rich.console import Console
from rich.table import Table

from stoker.records import Trial, Tuning, Value
from stoker.report import units


def toml(tuning: Tuning) -> str:
    """The kept knobs, for `stoker run --with`."""
    lines = ["# Written by stoker tune. Use it: stoker run --with stoker.toml -- python train.py", "[knobs]"]
    return "\n".join([*lines, *(f"{name} = {_toml(value)}" for name, value in tuning.final.knobs.items())]) + "\n"


def _toml(value: Value) -> str:
    return json.dumps(value)  # JSON's scalars are TOML's


def show(tuning: Tuning, console: Console) -> None:
    """The outcome in the terminal."""
    table = Table(
        "knob", "change", "ratio of rates (95 %)", "decision", "why", title="stoker tune", title_justify="left"
    )
    for trial in tuning.trials:
        table.add_row(trial.knob, _change(trial), _interval(trial), trial.decision, trial.reason)
    console.print(table)
    console.print(f"[bold]{_headline(tuning)}[/bold]", highlight=False)
    for line in _files(tuning):
        console.print(line, highlight=False, soft_wrap=True)


def markdown(tuning: Tuning, command: Sequence[str]) -> str:
    """The decision record."""
    return "\n".join(_record(tuning, command)) + "\n"


def _record(tuning: Tuning, command: Sequence[str]) -> Iterator[str]:
    yield f"# Decision: {_headline(tuning)}\n"
    yield f"Status: decided · Date: {datetime.now(UTC):%Y-%m-%d}\n"
    yield "## Context\n"
    yield f"Command: `{shlex.join(command)}`\n"
    yield from _context(tuning)
    yield "\n## Attempts\n"
    if not tuning.trials:
        yield "Nothing was left to try.\n"
    for number, trial in enumerate(tuning.trials, 1):
        yield from _attempt(number, trial)
    yield "## Decision\n"
    yield f"{_headline(tuning)}.\n"
    if tuning.final.knobs:
        yield "```toml"
        yield toml(tuning).rstrip()
        yield "```\n"
    if tuning.goal is not None:
        yield "## Goal\n"
        yield f"{_feasible(tuning.goal.feasible)}: {tuning.goal.why}.\n"
    yield from _do_not(tuning)


def _context(tuning: Tuning) -> Iterator[str]:
    reference = tuning.reference
    yield f"- Reference: {units.seconds(reference.step_s)} a step, {units.rate(reference.samples_per_s, 'samples')}"
    yield f"- Its knobs: {', '.join(f'`{name}={value}`' for name, value in reference.knobs.items()) or 'not seen'}"
    if tuning.noise is not None:
        band = f"{tuning.noise.ratio_low:.3f} to {tuning.noise.ratio_high:.3f}"
        yield f"- Noise: the reference against itself lies at {band}"
    yield "- Method: one knob at a time, fresh processes, interleaved with the reference in random order, no start-up"


def _attempt(number: int, trial: Trial) -> Iterator[str]:
    yield f"### {number}. `{trial.knob}`: {_change(trial)} — {trial.decision}\n"
    yield f"- Hypothesis: {trial.hypothesis}"
    yield f"- Rate, candidate ÷ reference: {_interval(trial)}"
    if trial.predicted_ratio is not None:
        yield f"- Predicted: {trial.predicted_ratio:.2f}×"
    yield f"- Peak memory: {units.size(trial.host_peak_bytes)}"
    yield f"- Can change what is trained: {'yes' if trial.changes_results else 'no'}"
    yield f"- Decision: **{trial.decision}**, because: {trial.reason}\n"


def _do_not(tuning: Tuning) -> Iterator[str]:
    rejected = [trial for trial in tuning.trials if trial.decision in ("revert", "unsafe")]
    if not rejected:
        return
    yield "## Do not attempt\n"
    yield "On this machine, with this data and this command; elsewhere it may be otherwise.\n"
    for trial in rejected:
        yield f"- `{trial.knob}={trial.after}`: {trial.reason} ({_interval(trial)})"
    yield ""


def _headline(tuning: Tuning) -> str:
    final = tuning.final
    if not final.knobs:
        return "keep the configuration as it is; nothing tried was proven faster"
    knobs = ", ".join(f"{name}={value}" for name, value in final.knobs.items())
    if final.ratio is None:
        return f"set {knobs}; the gain of all together was not measured"
    return f"set {knobs}: {final.ratio:.2f}× the rate (95 %: {final.ci_low:.2f} to {final.ci_high:.2f})"


def _feasible(feasible: bool | None) -> str:
    return {True: "Reached", False: "Out of reach", None: "Not reached with what was tried"}[feasible]


def _change(trial: Trial) -> str:
    before = "" if trial.before is None else f"{trial.before} "
    return f"{before}→ {trial.after}"


def _interval(trial: Trial) -> str:
    if trial.ratio is None:
        return "–"
    return f"{trial.ratio:.2f}× ({trial.ci_low:.2f} to {trial.ci_high:.2f})"


def _files(tuning: Tuning) -> Iterator[str]:
    if tuning.files.decision_md:
        yield f"decision record: {tuning.files.decision_md}"
    if tuning.files.stoker_toml and tuning.final.knobs:
        yield f"use it: stoker run --with {tuning.files.stoker_toml} -- …"
