"""What an investigation found, as the one record that every report is made from."""

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from statistics import median

from stoker.commands.tune.investigate import Found
from stoker.commands.tune.request import Request
from stoker.decide import measure_noise
from stoker.observe.meters import machine
from stoker.records.diagnosis import Diagnosis
from stoker.records.observed import Value
from stoker.records.tuning import (
    Alternative,
    Files,
    Final,
    Goal,
    PhysicalLimits,
    Reference,
    Trial,
    Tuning,
    TuningContext,
)
from stoker.report import units
from stoker.sizes import format_bytes
from stoker.trial.command import Command
from stoker.trial.contest import Candidate, Contest
from stoker.trial.limits import free_bytes

MOST_FILES = 100_000
DEVICES = 2


def build(
    found: Found, contest: Contest, request: Request, files: Files, started_s: float, *, interrupted: bool
) -> Tuning:
    """The record; what was not reached is None in it."""
    assert found.first is not None, "a tuning without a reference has no record"
    command = contest.command
    trials = tuple(trial(found, number, one, command) for number, one in enumerate(found.done))
    errors = [abs(one.prediction_error) for one in trials if one.prediction_error is not None]
    final = _final(found)
    limits = _limits(found.said)
    return Tuning(
        reference=Reference(_reference_knobs(found, request), _own_step_s(found), _per_s(found)),
        noise=measure_noise(contest.against_itself()),
        trials=trials,
        final=final,
        goal=_goal(request.goal_s, found, final, limits),
        files=files,
        context=_context(found, contest, request, started_s, interrupted=interrupted),
        limits=limits,
        findings=found.said.findings if found.said else (),
        alternatives=tuple(_alternatives(found, final)),
        median_prediction_error=median(errors) if errors else None,
    )


# ---- trials ------------------------------------------------------------------------------------------------


def trial(found: Found, number: int, one: Candidate, command: Command) -> Trial:
    """One candidate, with all that was measured of it."""
    interval = one.judgement.interval if one.judgement else None
    decision, reason = one.verdict
    before = {name: _before(name, one, command, found.start) for name in one.knobs}
    host = [s.outcome.host_peak_bytes for s in one.samples if s.outcome.host_peak_bytes is not None]
    device = [s.device_peak_bytes for s in one.samples if s.device_peak_bytes is not None]
    error = one.predicted_ratio / interval.ratio - 1 if one.predicted_ratio and interval else None
    pairs = list(zip(one.references, one.samples, strict=False))  # what was refused has no sample
    return Trial(
        knob=", ".join(one.knobs),
        before=_one(before),
        after=_one(one.knobs),
        hypothesis=one.hypothesis,
        predicted_ratio=one.predicted_ratio,
        ratio=interval.ratio if interval else None,
        ci_low=interval.low if interval else None,
        ci_high=interval.high if interval else None,
        decision=decision,
        reason=reason,
        host_peak_bytes=max(host, default=None),
        device_peak_bytes=max(device, default=None),
        changes_results=one.repeats or any(command.changes_results(name) for name in one.knobs),
        knobs=dict(one.knobs),
        base=dict(one.base),
        cause=one.cause,
        gain_max=one.gain_max,
        prediction_error=error,
        rounds=tuple(one.rounds),
        noise=found.noises.get(number),
        reference_step_s=_median([r.step_beside(s) for r, s in pairs] or [r.step_s for r in one.references]),
        step_s=_median([s.step_beside(r) for r, s in pairs]),
        reference_batch=one.references[-1].batch_size if one.references else None,
        batch=one.samples[-1].batch_size if one.samples else None,
        reference_wait_share=_median([sample.wait_share for sample in one.references]),
        wait_share=_median([sample.wait_share for sample in one.samples]),
        loss=found.losses.get(number),
        seconds=one.seconds,
    )


def _before(name: str, one: Candidate, command: Command, start: Mapping[str, Value]) -> Value:
    if name in one.base or name in start:
        return one.base.get(name, start.get(name))
    seen = next((sample.before[name] for sample in one.samples if name in sample.before), None)
    return command.before(name) if seen is None else seen


def _one(values: Mapping[str, Value]) -> Value:
    """The value of a single knob; several as one text."""
    if len(values) == 1:
        return next(iter(values.values()))
    return ", ".join(str(value) for value in values.values())


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _reference_knobs(found: Found, request: Request) -> dict[str, Value]:
    known: dict[str, Value] = {}
    facts = found.first.loader if found.first else None
    if facts is not None:
        names = ("num_workers", "prefetch_factor", "pin_memory", "persistent_workers", "batch_size")
        known = {name: getattr(facts, name) for name in names}
    for one in found.done:
        for sample in one.samples:
            known = {**{n: v for n, v in sample.before.items() if n not in one.base}, **known}
    return {**known, **request.start}


# ---- the end -----------------------------------------------------------------------------------------------


def _final(found: Found) -> Final:
    """What is kept; if all of it together was not faster after all, the first that was proven."""
    if not found.kept:
        return Final({}, None, None, None)
    last = found.final or (found.kept[0] if len(found.kept) == 1 else None)
    if last is not None and not last.is_kept:
        last = found.kept[0]
    if last is None or last.judgement is None:
        knobs = {name: value for one in found.kept for name, value in one.knobs.items()}
        return Final(knobs, None, None, None)
    interval = last.judgement.interval
    return Final(dict(last.knobs), interval.ratio, interval.low, interval.high)


def _gain(found: Found, final: Final) -> float:
    """What is kept brings: as measured together, else what each brought beside those before it."""
    return final.ratio or prod(one.ratio for one in found.kept)


def _own_step_s(found: Found) -> float:
    """Of all runs of the user's own configuration: one of them alone may have had company."""
    return median(sample.step_s for sample in found.own if sample.step_s is not None)


def _per_s(found: Found) -> float | None:
    size = found.first.batch_size if found.first else None
    return size / _own_step_s(found) if size else None


def _context(found: Found, contest: Contest, request: Request, started_s: float, *, interrupted: bool) -> TuningContext:
    said = found.said
    facts = found.first.loader if found.first else None
    device = (found.first.device if found.first else None) or (said.device.name if said else "cpu")
    return TuningContext(
        command=request.words,
        started_s=started_s,
        machine=machine(),
        device=device,
        loader=facts,
        steps_per_epoch=facts.length if facts else None,
        epoch_s=_epoch_s(found, 1.0),
        budget_s=request.budget_s,
        spent_s=contest.spent_s,
        processes=contest.processes,
        ended=found.ended,
        cold=request.cold,
        device_profile=request.device_profile,
        config=request.config,
        interrupted=interrupted,
        reference_samples_s=tuple(s.sample_s for s in contest.own_references if s.sample_s is not None),
        caution=found.caution,
    )


def _epoch_s(found: Found, ratio: float) -> float | None:
    """The forecast epoch at so many times the reference's rate: its steps, and what comes besides them."""
    facts = found.first.loader if found.first else None
    if found.first is None or facts is None or facts.length is None:
        return None
    return _own_step_s(found) * facts.length / ratio + _besides_s(found.said)


def _besides_s(said: Diagnosis | None) -> float:
    """Validation, checkpoints and what else stands between epochs."""
    parts = said.epoch_parts if said else None
    return sum(parts.get(name, 0.0) for name in ("validation", "checkpoint", "between")) if parts else 0.0


def _limits(said: Diagnosis | None) -> PhysicalLimits | None:
    if said is None:
        return None
    loader, compute = said.ceilings.loader_samples_per_s, said.ceilings.compute_samples_per_s
    if loader is None and compute is None:
        return None
    binds = "the loader" if loader and (not compute or loader < compute) else "the model"
    steps, now, step_s = said.steps_per_epoch, said.samples_per_s, said.mean_step_s
    epoch_s = None
    if compute and steps and now and step_s:
        epoch_s = steps * now * step_s / compute + _besides_s(said)
    return PhysicalLimits(loader, compute, binds, epoch_s)


def _goal(target_s: float | None, found: Found, final: Final, limits: PhysicalLimits | None) -> Goal | None:
    if target_s is None:
        return None
    epoch_s = _epoch_s(found, _gain(found, final))
    if epoch_s is None:
        return Goal(target_s, None, "the epoch's length is not known")
    kept = "with what was kept" if final.knobs else "as it is"
    takes = f"an epoch takes {units.seconds(epoch_s)} {kept}; the goal is {units.seconds(target_s)}"
    if epoch_s <= target_s:
        return Goal(target_s, True, takes, reached=True)
    if limits is None or limits.compute_epoch_s is None:
        return Goal(target_s, None, f"{takes}; the model's ceiling was not measured", reached=False)
    floor = f"with data for free the model alone takes {units.seconds(limits.compute_epoch_s)}"
    if limits.compute_epoch_s > target_s:
        return Goal(target_s, False, f"{takes}; {floor}", reached=False)
    return Goal(target_s, True, f"{takes}; {floor}, so the ceilings allow it: {_todo(found)}", reached=False)


def _todo(found: Found) -> str:
    """What the first cause asks for that was not tried."""
    tried = {name for one in found.done for name in one.knobs}
    for finding in found.said.findings if found.said else ():
        for candidate in finding.candidates:
            if candidate.kind != "knob" or candidate.knob not in tried:
                return candidate.text
    return "no cause is left that was not tried"


# ---- besides knobs ------------------------------------------------------------------------------------------


def _alternatives(found: Found, final: Final) -> Iterator[Alternative]:
    """What is not a knob, with sizes where they are known."""
    said, epoch_s = found.said, _epoch_s(found, _gain(found, final))
    if said is not None:
        yield from _from_findings(said)
    size = _data_bytes(found)
    if size:
        free = free_bytes()
        fits = "fits" if size < free else "does not fit"
        cost = f"{format_bytes(size)}; it {fits} in {format_bytes(free)} free"
        yield Alternative("hold the data in memory", "no reading after the first epoch", cost)
    if epoch_s is not None and found.first is not None:
        half = (epoch_s + _besides_s(said)) / 2
        yield Alternative(
            "train on half of the data",
            f"an epoch in {units.seconds(half)} instead of {units.seconds(epoch_s)}",
            "what the other half would teach",
        )
        if said is not None and said.verdict == "compute-bound":
            yield Alternative(
                f"{DEVICES} devices",
                f"at best {units.seconds(epoch_s / DEVICES)} an epoch",
                "another device, and a batch split or doubled",
            )


def _from_findings(said: Diagnosis) -> Iterator[Alternative]:
    told: set[str] = set()
    for finding in said.findings:
        for candidate in finding.candidates:
            if candidate.kind != "knob" and candidate.text not in told:
                told.add(candidate.text)
                gain = (
                    f"at most {finding.gain_max:.2f} times as fast ({finding.cause})"
                    if finding.gain_max
                    else finding.cause
                )
                changes = ", can change results" if candidate.changes_results else ""
                yield Alternative(candidate.text, gain, f"{candidate.kind}, risk {candidate.risk}{changes}")


def _data_bytes(found: Found) -> int | None:
    """What the folder holds that the data was read from."""
    if found.seen is None:
        return None
    makings = [m for worker in found.seen.workers for m in worker.makings]
    makings += [m for track in found.seen.tracks for m in track.probes.makings]
    names = [Path(name) for making in makings for name in making.files if "://" not in name]
    kinds = {(path.parent, path.suffix) for path in names if path.suffix}
    sizes = [file.stat().st_size for folder, suffix in kinds for file in _listed(folder, suffix)]
    return sum(sizes) or None


def _listed(folder: Path, suffix: str) -> list[Path]:
    try:
        return [path for path, _ in zip(folder.glob(f"*{suffix}"), range(MOST_FILES), strict=False) if path.is_file()]
    except OSError:
        return []
