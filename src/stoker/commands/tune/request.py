"""What the user asked for, read from the command line once and kept, so that an interrupted tuning can go on."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stoker.errors import UsageError
from stoker.records.codec import decode, encode
from stoker.records.observed import Value
from stoker.sizes import parse_seconds
from stoker.trial.command import Command, like

FILE = "request.json"
SEARCH = "auto"
"""`batch_size=auto`: the fastest that is safe."""
STEADY_SHARE, SHORTEST_S, LONGEST_S = 1 / 40, 1.5, 6.0
"""Of the budget for which each run is watched: forty runs, with their start-up some twenty, are a few comparisons."""


@dataclass(frozen=True, slots=True)
class Request:
    """A tuning as it was asked for. `start` fills the command's placeholders for the reference itself."""

    words: tuple[str, ...]
    start: Mapping[str, Value]
    asked: tuple[Mapping[str, Value], ...]
    search: tuple[str, ...]
    budget_s: float
    steady_s: float
    max_ram_bytes: int | None = None
    goal_s: float | None = None
    keep_results: bool = False
    only: bool = False
    cold: bool = False
    config: str | None = None
    device_profile: str | None = None
    findings: str | None = None

    @property
    def command(self) -> Command:
        """The command with its places for knobs."""
        return Command(self.words, Path(self.config) if self.config else None)

    def write(self, directory: Path) -> None:
        """Keep it beside what is measured."""
        (directory / FILE).write_text(json.dumps(encode(self)))

    @staticmethod
    def read(directory: Path) -> "Request":
        """What was kept."""
        try:
            return decode(Request, json.loads((directory / FILE).read_text()))
        except (OSError, ValueError) as error:
            raise UsageError(f"{directory} holds no tuning to go on with: {error}") from error


@dataclass(frozen=True, slots=True)
class Wishes:
    """The user's own knobs and values."""

    start: dict[str, Value]
    asked: tuple[dict[str, Value], ...]
    search: tuple[str, ...]


def wishes(command: Command, texts: Sequence[str], *, keep_results: bool) -> Wishes:
    """`--knob NAME=V,V`, each as often as there are values; a placeholder's first value is the reference's own."""
    start: dict[str, Value] = {}
    asked: list[dict[str, Value]] = []
    search: list[str] = []
    for text in texts:
        name, values = _split(text)
        found = [value.strip() for value in values.split(",")]
        searches = found[-1] == SEARCH and getattr(like(name), "name", "") == "batch_size"
        if searches:
            found.pop()
            _check_search(command, name, found)
            search.append(name)
        parsed = [command.parse(name, value) for value in found]
        if name in command.placeholders and name not in start:
            start[name], *parsed = parsed
        own = [{name: value} for value in parsed if value != start.get(name, command.before(name))]
        if keep_results and command.changes_results(name) and (searches or own):
            raise UsageError(f"{name} can change what is trained; leave it or --keep-results out")
        asked += own
    _check_filled(command, start)
    _check_keys(command, asked)
    return Wishes(start, tuple(asked), tuple(search))


def _split(text: str) -> tuple[str, str]:
    name, equals, values = text.partition("=")
    if not equals or not values.strip():
        raise UsageError(f"--knob {text} has no values; write --knob {name.strip()}=VALUE,VALUE")
    return name.strip(), values


def _check_search(command: Command, name: str, values: Sequence[str]) -> None:
    command.parse(name, "1")
    if name in command.placeholders and not values:
        raise UsageError(f"{name}={SEARCH} needs a size for the reference first; write --knob {name}=32,{SEARCH}")


def _check_keys(command: Command, asked: Sequence[Mapping[str, Value]]) -> None:
    """A key that cannot be changed by itself is said now, not when its trial is due."""
    for knobs in asked:
        keys = command.config_keys(knobs)
        if keys and command.config is not None:
            command.config.changed(keys)


def _check_filled(command: Command, start: Mapping[str, Value]) -> None:
    missing = sorted(command.placeholders - set(start))
    if missing:
        name = missing[0]
        raise UsageError(
            f"no knob fills {{{name}}}; write --knob {name}=VALUE,VALUE (the first is the reference), "
            f"or {{{{{name}}}}} for the braces themselves"
        )


def steady_seconds(text: str | None, budget_s: float) -> float:
    """How long each run is watched: as asked for, or so that a small budget has time for a few comparisons."""
    if text is not None:
        return parse_seconds(text)
    return min(max(STEADY_SHARE * budget_s, SHORTEST_S), LONGEST_S)


def goal_seconds(text: str | None) -> float | None:
    """`epoch=20m`."""
    if text is None:
        return None
    name, _, value = text.partition("=")
    if name != "epoch" or not value:
        raise UsageError(f"--goal {text} is not a goal; expected something like epoch=20m")
    return parse_seconds(value)
