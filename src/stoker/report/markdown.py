"""The report as Markdown, for a pull request or a wiki."""

from collections.abc import Iterator, Sequence

from stoker.records.diagnosis import Diagnosis
from stoker.report import findings, units
from stoker.report.terminal import SMALLEST_SHARE, headline


def dumps(diagnosis: Diagnosis, run: str, command: Sequence[str]) -> str:
    """The whole report."""
    return "\n".join(_lines(diagnosis, run, command))


def _lines(diagnosis: Diagnosis, run: str, command: Sequence[str]) -> Iterator[str]:
    yield f"# stoker doctor · {run}\n"
    yield f"`{' '.join(command)}`\n"
    for name, text in headline(diagnosis):
        yield f"- **{name}** {text.replace(chr(10), '; ')}"
    yield ""
    yield from _findings(diagnosis)
    yield from _table(("phase", "seconds", "share"), [
        (phase.name, f"{phase.seconds:.3f}", units.share(phase.share))
        for phase in diagnosis.phases
        if phase.share >= SMALLEST_SHARE
    ])  # fmt: skip
    yield f"\nNot accounted for: {units.share(diagnosis.unaccounted_share)}.\n"
    if diagnosis.hot_lines:
        yield from _table(("line", "function", "phase", "share"), [
            (f"`{line.file}:{line.line}`", f"`{line.function}`", line.phase, units.share(line.share))
            for line in diagnosis.hot_lines
        ])  # fmt: skip
    yield ""
    for note in diagnosis.notes:
        yield f"- {note}"


def _findings(diagnosis: Diagnosis) -> Iterator[str]:
    for finding in diagnosis.findings:
        yield f"## {finding.cause}\n"
        rows = [(item.name, findings.value(item)) for item in finding.evidence]
        yield from _table(("evidence", ""), rows)
        yield ""
        for one in finding.candidates:
            changes = "may change results" if one.changes_results else "results stay the same"
            yield f"- **{one.text}** (risk {one.risk}, {changes}, {one.horizon})"
            if one.hint:
                yield "".join(f"\n      {line}" for line in one.hint.splitlines())
        yield ""


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"
