"""The user's command, and how a knob reaches it: by the attach, by a `{placeholder}`, or by a key of a config file."""

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stoker.errors import UsageError
from stoker.knobs import KNOBS, Knob
from stoker.records.observed import Value
from stoker.trial.configfile import ConfigFile

_PLACEHOLDER = re.compile(r"\{\{([A-Za-z_][\w.-]*)\}\}|\{([A-Za-z_][\w.-]*)\}")
"""`{name}`, and `{{name}}` for who wants the braces themselves."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A command as it is started, and the knobs that the attach sets."""

    words: tuple[str, ...]
    attached: Mapping[str, Value]


class Command:
    """Words to start, with the places where knobs go in."""

    def __init__(self, words: Sequence[str], config: Path | None = None) -> None:
        self.words = tuple(words)
        self.placeholders = frozenset(match[2] for word in words for match in _PLACEHOLDER.finditer(word) if match[2])
        self.config = None if config is None else ConfigFile(config)
        if config is not None and not any(_mentions(word, config) for word in words):
            raise UsageError(
                f"the command does not mention {config}, so a changed copy cannot reach it; "
                f"write for instance: -- python train.py --config {config}"
            )

    def parse(self, name: str, text: str) -> Value:
        """The value that the user typed for a knob, checked as far as it can be."""
        if name in self.placeholders:
            knob = like(name)
            return knob.parse(text) if knob is not None else _read(text)
        if self.has_key(name):
            assert self.config is not None
            value = self.config.parse_value(name, text)
            knob = like(name)
            return value if knob is None else knob.check(value)
        if name in KNOBS:
            return KNOBS[name].parse(text)
        raise UsageError(self._unknown(name))

    def before(self, name: str) -> Value:
        """What a key of the config file holds; None for what is known only when it runs."""
        return self.config.values[name] if self.config is not None and self.has_key(name) else None

    def changes_results(self, name: str) -> bool:
        """Whether training could come out otherwise; who knows only the name of a setting must believe so."""
        knob = KNOBS.get(name) if self.is_attached(name) else like(name)
        return knob is None or knob.changes_results

    def with_knobs(self, knobs: Mapping[str, Value], place: Path) -> Ready:
        """The command with these knobs; a changed copy of the config file goes to `place`."""
        fills = {name: value for name, value in knobs.items() if name in self.placeholders}
        keys = {name: value for name, value in knobs.items() if name not in fills and self.has_key(name)}
        attached = {name: value for name, value in knobs.items() if name not in fills and name not in keys}
        missing = sorted(self.placeholders - set(fills))
        if missing:
            raise UsageError(
                f"no knob fills {{{missing[0]}}}; write --knob {missing[0]}=VALUE,VALUE (the first is the reference), "
                f"or {{{{{missing[0]}}}}} for the braces themselves"
            )
        words = tuple(_filled(word, fills) for word in self.words)
        if keys:
            assert self.config is not None
            copy = place / self.config.path.name
            copy.write_text(self.config.changed(keys))
            words = tuple(_redirected(word, self.config.path, copy) for word in words)
        return Ready(words, attached)

    def key_of(self, name: str, now: Value) -> str | None:
        """The one key of the config file that is a knob, by its name and by what it holds; None if it is not clear."""
        values = self.config.values.items() if self.config is not None else ()
        keys = [key for key, value in values if like(key) is KNOBS[name] and (type(value), value) == (type(now), now)]
        return keys[0] if len(keys) == 1 and keys[0] not in self.placeholders else None

    def config_keys(self, knobs: Mapping[str, Value]) -> dict[str, Value]:
        """Those of the knobs that are keys of the config file."""
        return {n: v for n, v in knobs.items() if n not in self.placeholders and self.has_key(n)}

    def is_attached(self, name: str) -> bool:
        """True if a knob is set by the attach: it has no place in the command, and none in its file."""
        return name not in self.placeholders and not self.has_key(name)

    def has_key(self, name: str) -> bool:
        """True if the config file has a plain value of this name."""
        return self.config is not None and name in self.config.values

    def _unknown(self, name: str) -> str:
        known = [*self.placeholders, *(self.config.values if self.config else ()), *KNOBS]
        near = difflib.get_close_matches(name, known, n=1)
        if not near and self.config is not None:
            near = [key for key in self.config.values if key.endswith(f".{name}")][:1]
        if near:
            return f"no knob is called {name}; did you mean {near[0]}?"
        where = f", no key of {self.config.path}" if self.config else ""
        return f"no knob is called {name}{where} and no {{{name}}} is in the command; known knobs: {', '.join(KNOBS)}"


def like(name: str) -> Knob | None:
    """The knob that a setting of this name most likely is: `train.num_workers` is `num_workers`."""
    return KNOBS.get(name.rpartition(".")[2].replace("-", "_"))


def plain(knobs: Mapping[str, Value]) -> dict[str, Value]:
    """Settings under the names of the knobs that they most likely are."""
    return {knob.name if (knob := like(name)) is not None else name: value for name, value in knobs.items()}


def _read(text: str) -> Value:
    text = text.strip()
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text, text)


def _filled(word: str, fills: Mapping[str, Value]) -> str:
    return _PLACEHOLDER.sub(lambda m: f"{{{m[1]}}}" if m[1] else str(fills[m[2]]), word)


def _mentions(word: str, path: Path) -> bool:
    return word.rpartition("=")[2] != "" and _same(word.rpartition("=")[2], path)


def _same(text: str, path: Path) -> bool:
    return Path(text) == path or (Path(text).name == path.name and Path(text).resolve() == path.resolve())


def _redirected(word: str, path: Path, copy: Path) -> str:
    if not _mentions(word, path):
        return word
    option, equals, _ = word.rpartition("=")
    return f"{option}{equals}{copy}"
