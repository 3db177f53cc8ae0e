"""The page of a tuning: what was decided, each trial against the noise, and the decision record."""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from stoker.records.tuning import Trial, Tuning, TuningContext
from stoker.report import figures, units
from stoker.report.cards import card
from stoker.report.page import Section, Table, Top, render


def html(tuning: Tuning, run: str, command: Sequence[str], record: str, kept: Path | None = None) -> str:
    """The page of one tuning; `record` is its decision record."""
    return render(top(tuning, run, command), list(sections(tuning, record)), f"stoker tune · {run}", kept)


def top(tuning: Tuning, run: str, command: Sequence[str]) -> Top:
    """What is seen first."""
    final = tuning.final
    knobs = ", ".join(f"{name}={value}" for name, value in final.knobs.items())
    kept = sum(1 for trial in tuning.trials if trial.decision == "keep")
    return Top(
        title=f"stoker tune · {run}",
        command=shlex.join(command),
        cause=f"set {knobs}" if knobs else "keep the configuration as it is",
        meaning=f"{len(tuning.trials)} trials, {kept} kept." if tuning.trials else "Nothing was left to try.",
        healthy=True,
        merits=tuple(_merits(tuning)),
        said=tuple(_said(tuning)),
    )


def _merits(tuning: Tuning) -> Iterator[tuple[str, str, str]]:
    final, reference = tuning.final, tuning.reference
    if final.ratio is not None:
        interval = f"95 %: {final.ci_low:.2f} to {final.ci_high:.2f}" if final.ci_low and final.ci_high else ""
        yield "measured together", f"{final.ratio:.2f}× the rate", interval
    elif final.knobs:
        yield "measured together", "not measured", ""
    yield "reference", f"{units.seconds(reference.step_s)} a step", units.rate(reference.samples_per_s, "samples")
    if tuning.noise is not None:
        yield "noise", f"{tuning.noise.ratio_low:.3f} to {tuning.noise.ratio_high:.3f}", "the reference against itself"


def _said(tuning: Tuning) -> Iterator[tuple[str, str]]:
    knobs = ", ".join(f"{name}={value}" for name, value in tuning.reference.knobs.items())
    if knobs:
        yield "your configuration", knobs
    if tuning.goal is not None:
        yield "goal", tuning.goal.why
    if tuning.final.knobs and tuning.files.stoker_toml:
        yield "use it", f"stoker run --with {tuning.files.stoker_toml} -- …"


def sections(tuning: Tuning, record: str) -> Iterator[Section]:
    """Everything below the decision."""
    drawn = tuple(figures.of_tuning(tuning))
    if drawn:
        yield Section("pictures", "Trials", figures=drawn)
    if tuning.trials:
        yield Section("every-trial", "Every trial", tables=(trials_table(tuning.trials),))
    if tuning.findings:
        yield Section("findings", "What slows it down", findings=tuple(card(finding) for finding in tuning.findings))
    if tuning.alternatives:
        rows = tuple((one.name, one.brings, one.costs) for one in tuning.alternatives)
        heads = ("not a knob", "brings", "costs")
        yield Section("alternatives", "Alternatives", tables=(Table("", heads, rows, words=True),))
    if tuning.context is not None:
        yield Section("setup", "Configuration and hardware", tables=(_setup(tuning, tuning.context),))
    yield Section("record", "Decision record", code=record)


def _setup(tuning: Tuning, context: TuningContext) -> Table:
    machine, loader, limits = context.machine, context.loader, tuning.limits
    quota = f", of which the quota grants {machine.quota_cores:g}" if machine.quota_cores else ""
    rows = [
        ("cores", f"{machine.cores}{quota}"),
        ("memory", units.size(machine.ram_bytes)),
        ("device", context.device),
        ("an epoch of the reference", units.seconds(context.epoch_s)),
        ("tried", f"{context.processes} runs in {units.seconds(context.spent_s)} of {units.seconds(context.budget_s)}"),
        ("ended because", context.ended),
    ]
    if context.caution:
        rows.append(("caution", context.caution))
    if loader is not None:
        rows.append(
            ("loader", f"{loader.dataset}, {loader.num_workers} workers, batches of {loader.batch_size or '?'}")
        )
    if limits is not None:
        loads = units.rate(limits.loader_samples_per_s, "samples")
        computes = units.rate(limits.compute_samples_per_s, "samples")
        rows.append(("ceilings", f"the loader alone {loads}, the model alone {computes}: {limits.binds} binds"))
    if tuning.median_prediction_error is not None:
        rows.append(("predictions were off by", f"{units.share(tuning.median_prediction_error)} in the median"))
    return Table("", (), tuple(rows), words=True)


def trials_table(trials: Sequence[Trial]) -> Table:
    """Every trial in a row."""
    heads = (
        "knob",
        "change",
        "why it was tried",
        "ratio (95 %)",
        "predicted",
        "decision",
        "because",
        "memory",
        "results",
    )
    return Table("", heads, tuple(_row(trial) for trial in trials), words=True)


def _row(trial: Trial) -> tuple[str, ...]:
    before = "" if trial.before is None else f"{trial.before} "
    interval = "–"
    if trial.ratio is not None and trial.ci_low is not None and trial.ci_high is not None:
        interval = f"{trial.ratio:.2f}× ({trial.ci_low:.2f} to {trial.ci_high:.2f})"
    predicted = "–" if trial.predicted_ratio is None else f"{trial.predicted_ratio:.2f}×"
    return (
        trial.knob,
        f"{before}→ {trial.after}",
        trial.hypothesis,
        interval,
        predicted,
        trial.decision,
        trial.reason,
        units.size(trial.host_peak_bytes),
        "may change" if trial.changes_results else "same",
    )
