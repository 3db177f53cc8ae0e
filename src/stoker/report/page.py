"""One self-contained HTML page: opens offline, asks no other host for anything, runs only the scripts it came with.

The page's policy names its two scripts and its style by their hashes and allows nothing else: no eval (Vega's
expressions are interpreted), no request, no inline handler. Everything from a record is escaped by the template, or
goes in as JSON that a script reads as data. Needs the extra `report`.
"""

import hashlib
import json
import os
from base64 import b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

from stoker.report.figures import Figure

HERE = Path(__file__).parent
NEEDS = ("altair", "vl_convert")
HOW_TO_GET = "pip install 'stoker[report]'"
SNIPPET = "window.vegaEmbed = vegaEmbed;"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text; `words` are aligned to the left, numbers to the right."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing to do."""

    text: str
    tags: tuple[str, ...]
    hint: str


@dataclass(frozen=True, slots=True)
class Card:
    """One finding."""

    title: str
    meaning: str
    tags: tuple[str, ...]
    place: str | None
    rows: tuple[tuple[str, ...], ...]
    todo: tuple[Advice, ...]


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what stands below it, in this order."""

    key: str
    title: str
    text: str = ""
    figures: tuple[Figure, ...] = ()
    findings: tuple[Card, ...] = ()
    tables: tuple[Table, ...] = ()
    code: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Top:
    """What is seen first: the verdict, one sentence, and the few numbers that matter."""

    title: str
    command: str
    cause: str
    meaning: str
    healthy: bool
    merits: tuple[tuple[str, str, str], ...]
    said: tuple[tuple[str, str], ...]


def can_draw() -> bool:
    """Whether the extra `report` is installed."""
    return all(find_spec(name) is not None for name in NEEDS)


def render(top: Top, sections: Sequence[Section], foot: str, kept: Path | None = None) -> str:
    """The whole page. `kept` is a directory in which the drawing library may be kept for the next page."""
    from stoker.report.charts.theme import config

    figures = [figure for section in sections for figure in section.figures]
    parts = {"library": library(kept), "script": asset("page.js"), "style": asset("page.css")}
    drawn = {
        "charts": {figure.key: figure.chart for figure in figures},
        "configs": {scheme: config(scheme) for scheme in ("light", "dark")},
    }
    return (
        _environment()
        .get_template("page.html.jinja")
        .render(
            **{name: getattr(top, name) for name in Top.__slots__},
            **{name: Markup(text) for name, text in parts.items()},  # noqa: S704  our own files, not a record
            policy=policy([parts["library"], parts["script"]], [parts["style"]]),
            sections=sections,
            charts=embedded(drawn),
            foot=foot,
        )
    )


def write(text: str, path: Path) -> None:
    """Write a page; a file name that is no text is shown as far as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    is_new = not os.path.lexists(path)
    try:
        path.write_bytes(text.encode("utf-8", "replace"))
    except OSError:
        if is_new:  # half a page on a full disk is none
            path.unlink(missing_ok=True)
        raise


@cache
def _environment() -> Environment:
    return Environment(loader=FileSystemLoader(HERE), autoescape=True, trim_blocks=True, lstrip_blocks=True)


def embedded(value: Mapping[str, Any]) -> Markup:
    """JSON that can stand inside a script element: no character of it can end the element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for letter in "<>&'":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return Markup(text)  # noqa: S704  escaped just above


def policy(scripts: Sequence[str], styles: Sequence[str]) -> str:
    """A Content-Security-Policy under which exactly these scripts run and these styles count."""
    return (
        f"default-src 'none'; script-src {_hashes(scripts)}; style-src {_hashes(styles)}; "
        "base-uri 'none'; form-action 'none'"
    )


def _hashes(texts: Sequence[str]) -> str:
    return " ".join(f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in texts)


@cache
def asset(name: str) -> str:
    """One of the page's own files."""
    return (HERE / name).read_text(encoding="utf-8")


# ---- the drawing library ---------------------------------------------------------------------------------


@cache
def library(kept: Path | None = None) -> str:
    """Vega, Vega-Lite and their embedding as one script. Bundling takes seconds, so it is kept where it may be."""
    import vl_convert

    versions = (version("vl-convert-python"), SNIPPET)
    name = hashlib.sha256("\0".join(versions).encode()).hexdigest()[:16]
    path = kept / f"vega-{name}.js" if kept is not None else None
    found = _read_kept(path) if path is not None else None
    if found is None:
        # Nothing in it may end the script element early.
        found = vl_convert.javascript_bundle(SNIPPET).replace("</script", "<\\/script").replace("<!--", "<\\!--")
        if path is not None:
            _keep(found, path)
    return found


def _read_kept(path: Path) -> str | None:
    """What was kept, if it is whole: its first line is the hash of the rest."""
    try:
        head, _, text = path.read_text(encoding="utf-8").partition("\n")
    except (OSError, ValueError):
        return None
    return text if head == f"// {hashlib.sha256(text.encode()).hexdigest()}" else None


def _keep(text: str, path: Path) -> None:
    head = f"// {hashlib.sha256(text.encode()).hexdigest()}\n"
    fresh = path.with_suffix(".new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_text(head + text, encoding="utf-8")
        fresh.replace(path)
    except OSError:  # a full or read-only disk costs the next page a few seconds, nothing else
        with suppress(OSError):
            fresh.unlink(missing_ok=True)
