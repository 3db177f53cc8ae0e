"""The docs say what the code does: a knob, an error or a verb without its line fails here."""

import re
from pathlib import Path

import pytest

from stoker import errors
from stoker.commands import VERBS
from stoker.knobs import KNOBS, Knob

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.mark.parametrize("knob", KNOBS.values(), ids=KNOBS.keys())
def test_every_knob_has_its_row(knob: Knob) -> None:
    results = "may change" if knob.changes_results else "same"
    row = f"| `{knob.name}` | {knob.meaning} | {knob.values} | {knob.scope} | {knob.risk} | {results} |"
    assert row in (DOCS / "knobs.md").read_text()


def error_classes() -> list[type[errors.StokerError]]:
    return [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.StokerError)]


@pytest.mark.parametrize("kind", error_classes(), ids=lambda kind: kind.__name__)
def test_every_error_is_in_the_docs_and_in_the_drawn_tree(kind: type[errors.StokerError]) -> None:
    rows = (DOCS / "errors.md").read_text().splitlines()
    assert any(f"`{kind.__name__}`" in row and row.startswith(f"| {kind.exit_code} |") for row in rows)
    assert kind.__name__ in (errors.__doc__ or "")


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_is_in_the_readme(verb: str) -> None:
    assert f"stoker {verb}" in (ROOT / "README.md").read_text()


def test_every_link_between_the_docs_leads_somewhere() -> None:
    for page in [ROOT / "README.md", *DOCS.glob("*.md"), *(ROOT / "examples").glob("*/README.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_document_is_reached_from_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    for page in DOCS.glob("*.md"):
        assert f"docs/{page.name}" in readme, f"README.md does not mention docs/{page.name}"


def test_the_readme_opens_with_the_two_commands_which_the_makefile_has() -> None:
    head = "\n".join((ROOT / "README.md").read_text().splitlines()[:30])
    makefile = (ROOT / "Makefile").read_text()
    for target in ("demo", "test"):
        assert f"make {target}" in head
        assert f"\n{target}:" in makefile


def test_ci_runs_make_test() -> None:
    assert "make test" in (ROOT / ".ci" / "run").read_text().splitlines()[-1]


def test_every_cause_has_its_paragraph_and_no_other_has() -> None:
    from stoker.diagnose import CAUSES

    heads = re.findall(r"^## ([a-z-]+)$", (DOCS / "causes.md").read_text(), re.MULTILINE)
    assert sorted(heads) == sorted(CAUSES)
