"""A tuning for people: the decision record as Markdown, the kept knobs as TOML, a patch, a table for the terminal."""

import difflib
import io
import json
import shlex
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from stoker.decide import MIN_GAIN
from stoker.records.diagnosis import Finding
from stoker.records.observed import LoaderFacts, Value
from stoker.records.tuning import LossCheck, Trial, Tuning, TuningContext
from stoker.report import findings, units

MOST_NEXT = 6


def toml(tuning: Tuning, placeholders: Mapping[str, Value], config: Mapping[str, Value]) -> str:
    """The kept knobs, for `stoker run --with`: those that the attach sets, those of the command, those of its file."""
    attached = {n: v for n, v in tuning.final.knobs.items() if n not in placeholders and n not in config}
    lines = ["# Written by stoker tune. Use it: stoker run --with stoker.toml -- python train.py", "[knobs]"]
    lines += _settings(attached)
    if placeholders:
        lines += ["", "[placeholders]", *_settings(placeholders)]
    if config and tuning.context is not None:
        lines += ["", f"[config.{_toml(tuning.context.config)}]", *_settings(config)]
    return "\n".join(lines) + "\n"


def _settings(values: Mapping[str, Value]) -> list[str]:
    """Lines of TOML, which has no word for nothing."""
    return [f"{_toml(name)} = {_toml(value)}" for name, value in values.items() if value is not None]


def patch(path: Path, before: str, after: str) -> str:
    """The change of a file, as `patch` and `git apply` read it; both refuse names that lead elsewhere."""
    name = path if not path.is_absolute() and ".." not in path.parts else Path(path.name)
    end = "\t" if " " in str(name) else ""  # without it `patch` reads up to the first space
    lines = difflib.unified_diff(
        list(io.StringIO(before)), list(io.StringIO(after)), f"a/{name}{end}", f"b/{name}{end}"
    )
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _toml(value: Value) -> str:
    return json.dumps(value, ensure_ascii=False)  # JSON's scalars are TOML's, but for what it escapes, and null


# ---- the terminal --------------------------------------------------------------------------------------------


def show(tuning: Tuning, console: Console) -> None:
    """The outcome in the terminal."""
    if tuning.trials:
        table = Table(
            "knob", "change", "rate ÷ reference (95 %)", "predicted", "decision", "why", title="stoker tune",
            title_justify="left",
        )  # fmt: skip
        for trial in tuning.trials:
            predicted = _predicted(trial)
            table.add_row(trial.knob, _change(trial), _interval(trial), predicted, trial.decision, trial.reason)
        console.print(table)
    console.print(f"[bold]{_headline(tuning)}[/bold]", highlight=False)
    for line in _closing(tuning):
        console.print(line, highlight=False, soft_wrap=True)


def _ending(context: TuningContext) -> Iterator[str]:
    yield f"stopped because {context.ended}; {context.processes} runs in {units.seconds(context.spent_s)}"
    if context.caution:
        yield f"caution: {context.caution}"


def _closing(tuning: Tuning) -> Iterator[str]:
    if tuning.context is not None:
        yield from _ending(tuning.context)
    if tuning.median_prediction_error is not None:
        yield f"predictions were off by {tuning.median_prediction_error:.0%} (median)"
    if tuning.limits is not None:
        yield f"{tuning.limits.binds} bound it: {_ceilings(tuning)}"
    for trial in _unsettled(tuning):
        yield f"undecided: {trial.knob}={trial.after} looked {_interval(trial)} as fast; a larger --budget could tell"
    first = next((one for one in _beyond_knobs(tuning)), None)
    if first is not None:
        yield f"not a knob, but worth more: {first}"
    if tuning.goal is not None:
        yield f"goal: {_feasible(tuning)}: {tuning.goal.why}"
    files = tuning.files
    if files.decision_md:
        yield f"decision record: {files.decision_md}"
    if files.config_patch:
        yield f"patch: {files.config_patch}"
    if files.stoker_toml and tuning.final.knobs:
        yield f"use it: stoker run --with {files.stoker_toml} -- …"


def _unsettled(tuning: Tuning) -> list[Trial]:
    return [trial for trial in tuning.trials if trial.decision == "undecided" and (trial.ratio or 1.0) > 1.0 + MIN_GAIN]


def _beyond_knobs(tuning: Tuning) -> Iterator[str]:
    """Fixes of the findings that no knob is, largest possible gain first."""
    gained = tuning.final.ratio or 1.0
    for finding in tuning.findings:
        other = next((one for one in finding.candidates if one.kind != "knob"), None)
        if other is not None and finding.gain_max is not None and finding.gain_max > gained:
            yield f"{findings.short(other.text)} ({finding.cause}, at most {finding.gain_max:.2f}×)"


# ---- the record ----------------------------------------------------------------------------------------------


def markdown(tuning: Tuning) -> str:
    """The decision record."""
    return "\n".join(_record(tuning)) + "\n"


def _record(tuning: Tuning) -> Iterator[str]:
    started_s = tuning.context.started_s if tuning.context else 0.0
    state = _state(tuning)
    yield f"# Decision: {_headline(tuning)}\n"
    yield "## Status\n"
    yield f"{state[0].upper()}{state[1:]}, {datetime.fromtimestamp(started_s, UTC):%Y-%m-%d}.\n"
    yield from _context(tuning)
    yield from _physical(tuning)
    yield "## Attempts\n"
    if not tuning.trials:
        yield f"{_untried(tuning)}.\n".capitalize()
    for number, trial in enumerate(tuning.trials, 1):
        yield from _attempt(number, trial)
    yield from _decision(tuning)
    yield from _goal(tuning)
    yield from _do_not(tuning)
    yield from _alternatives(tuning)
    yield from _next(tuning)


def _state(tuning: Tuning) -> str:
    if tuning.context and tuning.context.interrupted:
        return "interrupted, not decided to its end"
    if not tuning.trials and _is_cut(tuning.context):
        return "undecided: there was no time to try anything"
    is_open = not tuning.final.knobs and _unsettled(tuning)
    return "undecided: nothing was proven, and what looked faster needs more rounds" if is_open else "decided"


def _context(tuning: Tuning) -> Iterator[str]:
    reference, context = tuning.reference, tuning.context
    yield "## Context\n"
    if context is not None:
        yield f"- Command: `{shlex.join(context.command)}`"
        yield f"- Hardware: {_hardware(context)}"
        yield f"- Data: {_data(context.loader)}"
        steps = context.steps_per_epoch or "an unknown number of"
        yield f"- Epoch as it was: {units.seconds(context.epoch_s)}, {steps} steps"
    yield f"- Reference: {units.seconds(reference.step_s)} a step, {units.rate(reference.samples_per_s, 'samples')}"
    yield f"- Its knobs: {', '.join(f'`{name}={value}`' for name, value in reference.knobs.items()) or 'not seen'}"
    if tuning.noise is not None:
        band = f"{tuning.noise.ratio_low:.3f} to {tuning.noise.ratio_high:.3f}"
        yield f"- Noise: the reference against itself lies at {band}; a gain must clear that with its whole interval"
    yield f"- Method: {_method(context)}"
    if context is not None:
        spent = f"{units.seconds(context.spent_s)} of {units.seconds(context.budget_s)}"
        yield f"- Cost: {context.processes} runs, {spent}; it ended because {context.ended}"
        if context.caution:
            yield f"- Caution: {context.caution}"
    if tuning.median_prediction_error is not None:
        yield f"- Predictions: off by {tuning.median_prediction_error:.0%} (median over the trials that were simulated)"
    yield ""


def _hardware(context: TuningContext) -> str:
    machine = context.machine
    quota = f" (a quota of {machine.quota_cores:g})" if machine.quota_cores else ""
    return f"{machine.cores} cores{quota}, {units.size(machine.ram_bytes)} of RAM, device {context.device}"


def _data(loader: LoaderFacts | None) -> str:
    if loader is None:
        return "no DataLoader was seen"
    samples = f"{loader.samples:,} samples" if loader.samples is not None else "an unknown number of samples"
    order = "shuffled" if loader.shuffled else "in order"
    return f"`{loader.dataset}`, {samples}, batches of {loader.batch_size or 'unknown size'}, {order}"


def _method(context: TuningContext | None) -> str:
    cache = "page cache dropped before every run" if context and context.cold else "page cache as warm as runs leave it"
    device = f", device replayed from {context.device_profile}" if context and context.device_profile else ""
    return (
        "one knob at a time (or several that need each other, or were kept), fresh processes with one seed, "
        "interleaved with the reference in random order, start-up "
        f"left out, {cache}{device}"
    )


def _physical(tuning: Tuning) -> Iterator[str]:
    yield "## Physical limits\n"
    if tuning.limits is None:
        yield "Ceilings were not measured.\n"
        return
    bound = f"{tuning.limits.binds} binds. The bound of overlapped stages is the slower one, not their sum."
    yield f"- {_ceilings(tuning)}: {bound}"
    if tuning.limits.compute_epoch_s is not None:
        yield f"- With data for free an epoch would take {units.seconds(tuning.limits.compute_epoch_s)}"
    for finding in tuning.findings:
        yield f"- {_finding(finding)}"
    yield ""


def _finding(finding: Finding) -> str:
    gain = f", at most {finding.gain_max:.2f}×" if finding.gain_max is not None else ""
    said = "; ".join(f"{item.name} {findings.value(item)}".strip() for item in finding.evidence[:3])
    return f"`{finding.cause}`{gain}: {said}"


def _ceilings(tuning: Tuning) -> str:
    assert tuning.limits is not None
    loader, compute = tuning.limits.loader_samples_per_s, tuning.limits.compute_samples_per_s
    return f"the loader alone {units.rate(loader, 'samples')}, the model alone {units.rate(compute, 'samples')}"


def _attempt(number: int, trial: Trial) -> Iterator[str]:
    yield f"### {number}. `{trial.knob}`: {_change(trial)} ({trial.decision})\n"
    yield f"- Objective: a higher rate of steps{' (' + trial.cause + ')' if trial.cause else ''}"
    yield f"- Hypothesis: {trial.hypothesis}{_expectation(trial)}"
    based = ", ".join(f"{name}={value}" for name, value in trial.base.items())
    yield f"- Change: `{trial.knob}` {_change(trial)}{', with ' + based + ' on both sides' if based else ''}"
    yield f"- Before → after: {_took(trial)}"
    yield f"- Rate, candidate ÷ reference: {_interval(trial)} over {len(trial.rounds)} rounds"
    yield f"- Analysis: {'; '.join(_analysis(trial))}"
    if trial.loss is not None:
        yield f"- Loss: {_loss(trial.loss)}"
    yield f"- Decision: **{trial.decision}**, because: {trial.reason}\n"


def _took(trial: Trial) -> str:
    before, after = units.seconds(trial.reference_step_s), units.seconds(trial.step_s)
    if trial.step_s is None:
        return f"{before} a step → not measured"
    if trial.batch == trial.reference_batch:
        return f"{before} → {after} a step"
    return f"{before} a step of {trial.reference_batch} samples → {after} a step of {trial.batch}"


def _expectation(trial: Trial) -> str:
    if trial.predicted_ratio is not None:
        return f"; simulated: {trial.predicted_ratio:.2f}×"
    return f"; at most {trial.gain_max:.2f}×" if trial.gain_max is not None else ""


def _analysis(trial: Trial) -> Iterator[str]:
    if trial.wait_share is not None and trial.reference_wait_share is not None:
        yield f"waiting for data took {trial.reference_wait_share:.0%} of a step before, {trial.wait_share:.0%} after"
    if trial.prediction_error is not None:
        side = "too high" if trial.prediction_error > 0 else "too low"
        yield f"the simulation was {abs(trial.prediction_error):.0%} {side}"
    if trial.noise is not None and trial.ratio is not None:
        yield f"noise {trial.noise.ratio_low:.2f} to {trial.noise.ratio_high:.2f}"
    yield f"peak memory {units.size(trial.host_peak_bytes)}"
    if trial.device_peak_bytes is not None:
        yield f"of the device {units.size(trial.device_peak_bytes)}"
    yield "it can change what is trained" if trial.changes_results else "it cannot change what is trained"


def _loss(check: LossCheck) -> str:
    if check.verdict == "unknown":
        return "not comparable: two references differ by as much, or no loss was seen"
    found = "not a number" if check.difference is None else f"{check.difference:.2%}"
    noise = "" if check.noise is None else f", two references {check.noise:.2%}"
    return f"{check.verdict}: {found} apart over the first {check.steps} steps (tolerance {check.tolerance:.0%}{noise})"


def _decision(tuning: Tuning) -> Iterator[str]:
    yield "## Decision\n"
    yield f"{_headline(tuning)}.\n"
    if tuning.final.knobs:
        yield "```"
        yield from (f"{name} = {_toml(value)}" for name, value in tuning.final.knobs.items())
        yield "```\n"
    if tuning.files.config_patch:
        config = tuning.context.config if tuning.context else None
        yield f"As a patch: `patch {shlex.quote(config or '')} {shlex.quote(tuning.files.config_patch)}`\n"


def _goal(tuning: Tuning) -> Iterator[str]:
    if tuning.goal is not None:
        yield "## Goal\n"
        yield f"{_feasible(tuning)}: {tuning.goal.why}.\n"


def _do_not(tuning: Tuning) -> Iterator[str]:
    rejected = [trial for trial in tuning.trials if trial.decision in ("revert", "unsafe")]
    context = tuning.context
    where = f"{_hardware(context)}, with this data and this command" if context else "this data and this command"
    yield "## Do not attempt\n"
    if not rejected:
        yield "Nothing that was tried was proven slower, or unsafe.\n"
        return
    yield f"The evidence is from {where}; elsewhere it may be otherwise.\n"
    for trial in rejected:
        based = f" beside {', '.join(f'{n}={v}' for n, v in trial.base.items())}" if trial.base else ""
        yield f"- `{trial.knob}={trial.after}`{based}: {trial.reason} ({_interval(trial)}, {len(trial.rounds)} rounds)"
    yield ""


def _alternatives(tuning: Tuning) -> Iterator[str]:
    if not tuning.alternatives:
        return
    yield "## Alternatives\n"
    yield "| what | brings | costs |\n|---|---|---|"
    for one in tuning.alternatives:
        yield f"| {findings.short(one.name)} | {one.brings} | {one.costs} |"
    yield ""


def _next(tuning: Tuning) -> Iterator[str]:
    yield "## Next steps\n"
    steps = []
    if tuning.final.knobs and tuning.files.stoker_toml:
        steps.append(f"Train with it: `stoker run --with {tuning.files.stoker_toml} -- …`")
    steps += [f"No knob does this: {text}" for text in _beyond_knobs(tuning)]
    steps += [
        f"Undecided: `{trial.knob}={trial.after}` ({_interval(trial)}); more rounds could tell"
        for trial in tuning.trials
        if trial.decision == "undecided"
    ]
    if tuning.context and tuning.context.ended.startswith("the budget"):
        steps.append("Something was left to try: `stoker tune --resume` with a larger --budget")
    for step in steps[:MOST_NEXT] or ["None: nothing is predicted to bring 3 %"]:
        yield f"- {step}"
    for finding in tuning.findings[:1]:
        hint = next((one.hint for one in finding.candidates if one.kind != "knob" and one.hint), None)
        if hint is not None:
            yield f"\n```\n{findings.short(hint)}\n```"


# ---- words -----------------------------------------------------------------------------------------------------


def _headline(tuning: Tuning) -> str:
    final = tuning.final
    if not final.knobs:
        tried = "nothing tried was proven faster" if tuning.trials else _untried(tuning)
        return f"keep the configuration as it is; {tried}"
    knobs = ", ".join(f"{name}={value}" for name, value in final.knobs.items())
    if final.ratio is None:
        return f"set {knobs}; the gain of all together was not measured"
    return f"set {knobs}: {final.ratio:.2f}× the rate (95 %: {final.ci_low:.2f} to {final.ci_high:.2f})"


def _untried(tuning: Tuning) -> str:
    """Why nothing was tried: that there was no time for it says nothing about what it would bring."""
    return "nothing was tried" if _is_cut(tuning.context) else "nothing was worth a trial"


def _is_cut(context: TuningContext | None) -> bool:
    return context is not None and (context.interrupted or context.ended.startswith("the budget"))


def _feasible(tuning: Tuning) -> str:
    goal = tuning.goal
    assert goal is not None
    if goal.reached:
        return "reached"
    return {True: "feasible, not reached", False: "out of reach", None: "not reached"}[goal.feasible]


def _change(trial: Trial) -> str:
    before = "" if trial.before is None else f"{trial.before} "
    return f"{before}→ {trial.after}"


def _interval(trial: Trial) -> str:
    if trial.ratio is None:
        return "–"
    return f"{trial.ratio:.2f}× ({trial.ci_low:.2f} to {trial.ci_high:.2f})"


def _predicted(trial: Trial) -> str:
    if trial.predicted_ratio is not None:
        return f"{trial.predicted_ratio:.2f}×"
    return f"≤ {trial.gain_max:.2f}×" if trial.gain_max is not None else "–"
