"""A finding as a page shows it."""

from stoker.records.diagnosis import Candidate, Finding
from stoker.report import findings, units
from stoker.report.page import Advice, Card


def card(finding: Finding) -> Card:
    """The cause, its evidence, and what can be done about it."""
    tags = []
    if finding.gain_max is not None:
        tags.append(f"at most {finding.gain_max:.2f}× as fast")
    if finding.share is not None:
        tags.append(f"{units.share(finding.share)} of a step")
    tags.append(f"confidence {units.share(finding.confidence)}")
    if finding.then:
        tags.append(f"then bound by {finding.then}")
    return Card(
        title=finding.cause,
        meaning=f"{findings.meaning(finding.cause)}.",
        tags=tuple(tags),
        place=findings.short(finding.place) if finding.place else None,
        rows=tuple((item.name, findings.value(item)) for item in finding.evidence),
        todo=tuple(_advice(one) for one in finding.candidates) or (Advice(findings.short(finding.fix), (), ""),),
    )


def _advice(one: Candidate) -> Advice:
    changes = "may change results" if one.changes_results else "results stay the same"
    return Advice(findings.short(one.text), (f"risk {one.risk}", changes, one.horizon), findings.short(one.hint))
