"""Findings as people read them: verdict, evidence, what to do, and what the experiments cost."""

from collections.abc import Iterator
from pathlib import Path

from stoker.diagnose import CAUSES
from stoker.records.diagnosis import Candidate, Diagnosis, Evidence, Finding
from stoker.report import units

MOST_FINDINGS = 4
MOST_CANDIDATES = 4
CROWDED = 0.2
"""The share of the loop's time that other programs may take before it is said."""
STOLEN = 0.05
"""The share of the cores that a virtual machine's host may give to others before it is said."""
MOST_EVIDENCE = 2
"""What is said of a finding that is not the first."""


def headline(diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    """The judged part of the verdict box, line by line."""
    yield from _judged(diagnosis)
    if (others := diagnosis.others_share or 0.0) >= CROWDED:
        had = f"on cached batches the loop waited for a core in {units.share(others)} of the time"
        yield "caution", f"other programs had the cores: {had}. Run it again when the machine is quiet"
    if (stolen := diagnosis.machine.stolen_share or 0.0) >= STOLEN:
        had = f"{units.share(stolen)} of the core time that was wanted went to others on the same host"
        yield "caution", f"this virtual machine did not have its cores: {had}. Times differ by as much from run to run"


def _judged(diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    if not diagnosis.findings:
        yield "verdict", f"healthy: {CAUSES['healthy'].meaning}; no gain of 5 % was found"
        yield from _ceilings(diagnosis)
        return
    first = diagnosis.findings[0]
    yield "verdict", f"{first.cause}: {meaning(first.cause)}"
    yield "why", "\n".join(_said(item) for item in first.evidence)
    if first.place:
        yield "where", short(first.place)
    yield "next", short(first.fix)
    if first.gain_max is not None:
        yield "gain", _at_most(first)
    yield "sure", f"{units.share(first.confidence)}, by the spread of what was measured"
    yield from _ceilings(diagnosis)
    for other in diagnosis.findings[1:MOST_FINDINGS]:
        said = ", ".join(_said(item) for item in other.evidence[:MOST_EVIDENCE])
        yield "also", f"{other.cause}: {said}; {_at_most(other)}"
    if diagnosis.restart_below_share is not None:
        done = units.share(diagnosis.restart_below_share)
        yield (
            "restart?",
            f"a run that goes on already: restart it with the fix if less than {done} is done, else let it finish",
        )


def meaning(cause: str) -> str:
    """What a cause means, in a few words; a record may be newer than this Stoker, or broken."""
    return CAUSES[cause].meaning if cause in CAUSES else "a cause that this Stoker does not know"


def short(text: str) -> str:
    """Paths below the working directory, as one would type them."""
    return text.replace(f"{Path.cwd()}/", "")


def _at_most(finding: Finding) -> str:
    if finding.gain_max is None:
        return "no faster, but safer" if finding.cause == "ram-growth" else "as it is"
    then = "the model's own work" if finding.then == "compute-bound" else finding.then
    after = f"; after that, you will be bound by {then}" if then else ""
    return f"at most {finding.gain_max:.2f}× as fast{after}"


def _ceilings(diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    ceilings = diagnosis.ceilings
    parts = []
    if ceilings.loader_samples_per_s is not None:
        parts.append(f"the loader alone {units.rate(ceilings.loader_samples_per_s, 'samples')}")
    if ceilings.compute_samples_per_s is not None:
        parts.append(f"the model alone {units.rate(ceilings.compute_samples_per_s, 'samples')}")
    if parts and diagnosis.samples_per_s is not None:
        yield "ceilings", ", ".join([*parts, f"now {units.rate(diagnosis.samples_per_s, 'samples')}"])


def _said(item: Evidence) -> str:
    return f"{item.name}: {value(item)}"


def value(item: Evidence) -> str:
    """One number with its unit."""
    if isinstance(item.value, str):
        return item.value
    if item.unit == "s":
        return units.seconds(item.value)
    if item.unit in ("B", "B/s"):
        return units.size(item.value) + item.unit.removeprefix("B")
    if item.unit == "share":
        return units.share(item.value)
    if item.unit == "ratio":
        return f"{item.value:.1f}×"
    return f"{units.number(item.value)} {item.unit}".strip()


def candidates(diagnosis: Diagnosis) -> Iterator[tuple[str, Candidate]]:
    """What could be done, with the cause it is for; the same advice is given once."""
    seen: set[str] = set()
    for finding in diagnosis.findings[:MOST_FINDINGS]:
        for candidate in finding.candidates[:MOST_CANDIDATES]:
            if candidate.text not in seen:
                seen.add(candidate.text)
                yield finding.cause, candidate


def experiments(diagnosis: Diagnosis) -> Iterator[tuple[str, str, str]]:
    """Each kind of experiment: its name, what it was planned to take, what it took."""
    windows = diagnosis.probes.windows
    for name in dict.fromkeys(window.name for window in windows):
        ours = [window for window in windows if window.name == name]
        took = sum(window.end_ns - window.start_ns for window in ours) / 1e9
        planned = sum(window.planned_s for window in ours)
        yield f"{name} ({len(ours)})", units.seconds(planned), units.seconds(took)
