"""`stoker tune`: try knobs one at a time against the user's own configuration, keep what is proven, write it down."""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stoker.commands import pages
from stoker.errors import UsageError
from stoker.knobs import KNOBS, find
from stoker.ledger import Ledger
from stoker.records import Files, Final, Goal, Judgement, LoaderFacts, Noise, Reference, Round, Trial, Tuning, Value

if TYPE_CHECKING:  # numpy and the trials are loaded when something is tried, so that --help is fast
    from stoker.trial.contest import Candidate, Contest
    from stoker.trial.measure import Sample

NOISE_RUNS = 4
"""Runs of the reference before anything is tried: three comparisons of it with itself."""
WIDEST = 4
"""Candidates that share a reference in one round."""

Idea = tuple[Mapping[str, Value], str]
"""Knobs to try together, and why."""


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--budget", default="10m", show_default=True, help="How long to try, in all.")
@click.option("--knob", "knobs", multiple=True, metavar="KNOB=V,V", help="Try these values only. Repeatable.")
@click.option("--keep-results", is_flag=True, help="Try only knobs that cannot change what is trained.")
@click.option("--steady", default="6s", show_default=True, help="How long each run is watched once it trains.")
@click.option("--max-ram", metavar="SIZE", help="The most memory one trial may take. Default: 80 % of what is free.")
@click.option("--goal", metavar="epoch=TIME", help="A target for the epoch; says whether it can be reached.")
@click.option(
    "--json", "json_path", type=click.Path(path_type=Path), help="Also write the result as JSON to this file."
)
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Directory for the records.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def tune(
    budget: str,
    knobs: tuple[str, ...],
    keep_results: bool,
    steady: str,
    max_ram: str | None,
    goal: str | None,
    json_path: Path | None,
    out: Path | None,
    command: tuple[str, ...],
) -> int:
    r"""Try knobs against your own configuration, keep what is proven faster. COMMAND is how you start it:

    \b
        stoker tune --budget 5m -- python train.py
        stoker tune --knob num_workers=0,2,4 --keep-results -- python train.py

    One knob at a time, reference and candidate interleaved in random order in fresh processes, each within a budget of
    memory and time; the answer is a ratio of rates with a 95 % interval. Your checkpoints are not touched. What is kept
    goes into stoker.toml, for `stoker run --with stoker.toml`; why, into decision.md.
    """
    from stoker.observe.launch import resolve
    from stoker.trial.contest import Contest
    from stoker.trial.sizes import parse_bytes

    asked, target_s = named(knobs, keep_results), goal_seconds(goal)
    budget_s, steady_s = seconds(budget), seconds(steady)
    max_ram_bytes = None if max_ram is None else parse_bytes(max_ram)
    words = resolve(command)
    ledger = Ledger()
    row = ledger.open_run(words, out)
    print(f"stoker: tuning for {budget}; records go to {row.directory}", file=sys.stderr)
    contest = Contest(
        words,
        row.directory,
        budget_s=budget_s,
        steady_s=steady_s,
        max_ram_bytes=max_ram_bytes,
        judge=judge_at_looks,
        said=_say,
    )
    state = "failed"
    try:
        tuning = investigate(contest, asked, target_s, row.directory)
        _publish(tuning, words, row.directory, json_path)
        state = "done"
    finally:
        ledger.close_run(row.run, state, None, None)
    return 0


def judge_at_looks(rounds: Sequence[Round], reference: Sequence[Round], last: bool) -> Judgement | None:
    """What the rounds say, at the looks that were settled beforehand: looking more often would find more by chance."""
    from stoker.decide import EARLY, LOOKS, judge, measure_noise

    if last or len(rounds) in (EARLY, *LOOKS):
        return judge(rounds, measure_noise(reference), last=last)
    return None


# ---- what to try -----------------------------------------------------------------------------------------


def sweep(facts: LoaderFacts | None, base: Mapping[str, Value], cores: int) -> Iterator[Idea]:
    """The loader's knobs around what is set; never what is set already, or was kept before."""
    if facts is None:
        return
    workers = base.get("num_workers", facts.num_workers)
    assert isinstance(workers, int)
    for value in sorted({1, cores, 2 * cores} - {workers}) if "num_workers" not in base else ():
        if value > workers:
            yield {"num_workers": value}, "batches are made in parallel while cores are idle"
        elif value >= workers // 2:
            yield {"num_workers": value}, "fewer processes share the cores"
    if not workers:
        return
    prefetch = facts.prefetch_factor or 2
    if "prefetch_factor" not in base:
        yield {"prefetch_factor": prefetch * 2}, "more batches ready hide the slow ones"
    if "persistent_workers" not in base and not facts.persistent_workers:
        yield {"persistent_workers": True}, "workers are not started anew for every epoch"


def named(texts: Sequence[str], keep_results: bool) -> list[Idea]:
    """The user's own knobs and values."""
    found: list[Idea] = []
    for text in texts:
        name, equals, values = text.partition("=")
        knob = find(name.strip())
        if not equals or not values.strip():
            raise UsageError(f"--knob {text} has no values; write --knob {name.strip()}=VALUE,VALUE")
        if keep_results and knob.changes_results:
            raise UsageError(f"{knob.name} can change what is trained; leave it or --keep-results out")
        found += [({knob.name: knob.parse(value)}, "asked for on the command line") for value in values.split(",")]
    return found


def seconds(text: str) -> float:
    """A duration as people write it: `90`, `90s`, `10m`, `1.5h`."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smh]?)\s*", text)
    if match is None or float(match[1]) <= 0:
        raise UsageError(f"{text!r} is not a duration; expected something like 90s, 10m or 1.5h")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


def goal_seconds(text: str | None) -> float | None:
    """`epoch=20m`."""
    if text is None:
        return None
    name, _, value = text.partition("=")
    if name != "epoch" or not value:
        raise UsageError(f"--goal {text} is not a goal; expected something like epoch=20m")
    return seconds(value)


# ---- trying ----------------------------------------------------------------------------------------------


def investigate(contest: "Contest", asked: Sequence[Idea], target_s: float | None, directory: Path) -> Tuning:
    """The arrow of a tuning: reference, noise, candidates in groups, the kept ones together."""
    from stoker.decide import measure_noise

    first = contest.refer()
    _check_budget(contest)
    for _ in range(NOISE_RUNS - 1):
        contest.refer()
    noise = measure_noise(contest.against_itself())
    _say_reference(first, noise)
    done = _try_all(contest, asked, first.loader)
    final = _final(contest, done)
    return Tuning(
        reference=Reference(_reference_knobs(first, done), _step(first), _per_s(first)),
        noise=noise,
        trials=tuple(_trial(one) for one in done),
        final=final,
        goal=_goal(target_s, first, final),
        files=Files(str(directory / "decision.md"), str(directory / "stoker.toml"), pages.place_of(directory)),
    )


def _check_budget(contest: "Contest") -> None:
    from stoker.decide import EARLY

    needed_s = contest.process_s * (NOISE_RUNS - 1 + 2 * EARLY)
    if contest.left_s < needed_s:
        raise UsageError(
            f"the budget is too small for one comparison: one run takes {contest.process_s:.0f} s, so "
            f"{needed_s + contest.process_s:.0f} s are needed; set --budget to that or more"
        )


def _try_all(contest: "Contest", asked: Sequence[Idea], facts: LoaderFacts | None) -> list["Candidate"]:
    """Group after group; the best of a group becomes part of the reference for the next."""
    from stoker.decide import EARLY, LOOKS
    from stoker.observe.meters import machine
    from stoker.trial.contest import Candidate

    cores = machine().cores
    done: list[Candidate] = []
    waiting = list(asked) or list(sweep(facts, contest.base, cores))
    while waiting and contest.left_s > contest.process_s * 2 * EARLY:
        width = min(WIDEST, max(1, int(contest.left_s / (contest.process_s * LOOKS[0])) - 1))
        group = [Candidate(*idea) for idea in waiting[:width]]
        waiting = waiting[width:]
        contest.decide(group)
        done += group
        best = _best(group)
        if best is None:
            continue
        contest.rebase(best.knobs)
        tried = [one.knobs for one in done]
        again = waiting if asked else sweep(facts, contest.base, cores)
        waiting = [idea for idea in again if idea[0] not in tried and not set(idea[0]) & set(contest.base)]
        if waiting and contest.left_s > contest.process_s * (2 * EARLY + 2):
            contest.refer()
            contest.refer()
    return done


def _best(group: Sequence["Candidate"]) -> "Candidate | None":
    kept = [one for one in group if one.is_kept]
    return max(kept, key=lambda one: one.judgement.interval.ratio if one.judgement else 0.0, default=None)


def _final(contest: "Contest", done: Sequence["Candidate"]) -> Final:
    """All kept knobs together against the user's own configuration: measured if several were kept, else known."""
    from stoker.trial.contest import Candidate

    kept = [one for one in done if one.is_kept and one.knobs.items() <= contest.base.items()]
    if not kept:
        return Final({}, None, None, None)
    last = kept[0]
    if len(kept) > 1:
        last = Candidate(dict(contest.base), "the kept knobs together")
        contest.rebase(None)
        if contest.left_s > 2 * contest.process_s:
            contest.refer()
            contest.decide([last])
    interval = last.judgement.interval if last.judgement else None
    if interval is None:
        return Final(dict(last.knobs), None, None, None)
    return Final(dict(last.knobs), interval.ratio, interval.low, interval.high)


# ---- records ---------------------------------------------------------------------------------------------


def _trial(one: "Candidate") -> Trial:
    (name, value), *_ = one.knobs.items()
    interval = one.judgement.interval if one.judgement else None
    decision, reason = one.verdict
    peaks = [sample.outcome for sample in one.samples]
    host = [peak.host_peak_bytes for peak in peaks if peak.host_peak_bytes is not None]
    device = [peak.device_peak_bytes for peak in peaks if peak.device_peak_bytes is not None]
    return Trial(
        knob=name,
        before=next((sample.before[name] for sample in one.samples if name in sample.before), None),
        after=value,
        hypothesis=one.hypothesis,
        predicted_ratio=one.predicted_ratio,
        ratio=interval.ratio if interval else None,
        ci_low=interval.low if interval else None,
        ci_high=interval.high if interval else None,
        decision=decision,
        reason=reason,
        host_peak_bytes=max(host, default=None),
        device_peak_bytes=max(device, default=None),
        changes_results=KNOBS[name].changes_results,
    )


def _reference_knobs(first: "Sample", done: Sequence["Candidate"]) -> dict[str, Value]:
    known: dict[str, Value] = {}
    if first.loader is not None:
        facts = first.loader
        known = {
            "num_workers": facts.num_workers,
            "prefetch_factor": facts.prefetch_factor,
            "pin_memory": facts.pin_memory,
            "persistent_workers": facts.persistent_workers,
            "batch_size": facts.batch_size,
        }
    for one in done:
        for sample in one.samples:
            known = {**sample.before, **known}
    return known


def _step(sample: "Sample") -> float:
    assert sample.step_s is not None
    return sample.step_s


def _per_s(sample: "Sample") -> float | None:
    return sample.batch_size / _step(sample) if sample.batch_size else None


def _goal(target_s: float | None, first: "Sample", final: Final) -> Goal | None:
    if target_s is None:
        return None
    length = first.loader.length if first.loader else None
    if length is None:
        return Goal(target_s, None, "the epoch's length is not known")
    epoch_s = _step(first) * length / (final.ratio or 1.0)
    reached = epoch_s <= target_s
    why = f"training steps alone take {epoch_s:.0f} s an epoch with what was kept; the goal is {target_s:.0f} s"
    return Goal(target_s, True if reached else None, why)


# ---- words -----------------------------------------------------------------------------------------------


def _say_reference(first: "Sample", noise: Noise) -> None:
    print(
        f"stoker: reference {_step(first) * 1e3:.1f} ms a step; against itself "
        f"{noise.ratio_low:.2f} to {noise.ratio_high:.2f}",
        file=sys.stderr,
    )


def _say(one: "Candidate") -> None:
    what = ", ".join(f"{name}={value}" for name, value in one.knobs.items())
    if one.failure is not None:
        print(f"stoker: {what}: {one.failure[0]} ({one.failure[1]})", file=sys.stderr)
        return
    last = one.rounds[-1]
    judged = one.judgement
    said = f", {judged.decision}: {judged.reason}" if judged is not None and judged.decision else ""
    ratio = last.reference_s[0] / last.candidate_s[0]
    print(f"stoker: {what}: round {len(one.rounds)}, {ratio:.2f} of the reference's rate{said}", file=sys.stderr)


def _publish(tuning: Tuning, command: Sequence[str], directory: Path, json_path: Path | None) -> None:
    from rich.console import Console

    from stoker.report import data, decision

    (directory / "decision.md").write_text(decision.markdown(tuning, command))
    (directory / "stoker.toml").write_text(decision.toml(tuning))
    text = data.dumps(tuning)
    data.write(text, directory / "tuning.json")
    if json_path is not None:
        data.write(text, json_path)
    decision.show(tuning, Console(stderr=True))
    pages.offer_tuning(tuning, command, directory)
