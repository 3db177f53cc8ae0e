"""A key of the user's YAML, JSON or TOML file, changed in a copy: only the value's own text, so that comments stay.

No format needs a parser with positions for that: every piece of text that reads as the old value is replaced in turn,
until the file as a whole reads as it did, but for that one key.
"""

import copy
import json
import math
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from stoker.errors import MissingExtraError, UsageError
from stoker.records.observed import Value

_PIECES = re.compile(r""""(?:[^"\\\n]|\\.)*"|'[^'\n]*'|[^\s,\[\]{}:=#"']+""")
_PLAIN = re.compile(r"(?<=[:-] )\S[^\n]*?(?=\s*(?:\s#[^\n]*)?$)", re.MULTILINE)
"""YAML's own: words without quotes up to the end of the line, or a comment."""
SUFFIXES = (".yaml", ".yml", ".json", ".toml")


class ConfigFile:
    """One file: what its keys hold, and its text with other values. The file itself is never written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._parse = _parser(path)
        try:
            self.text = path.read_bytes().decode()  # with the ends of lines that it has
            self._table = self._parse(self.text)
        except OSError as error:
            raise UsageError(
                f"{path} cannot be read: {error.strerror}; expected the file that the command reads"
            ) from error
        except ValueError as error:
            raise UsageError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
        self.values = dict(_scalars(self._table))

    def parse_value(self, key: str, text: str) -> Value:
        """What the user typed for a key: in the file's own language, a text where the key holds a text."""
        before = self.values[key]
        if isinstance(before, str):
            return text
        try:
            value = self._read_piece(text)
        except ValueError:
            value = text
        is_flag = isinstance(before, bool)
        if isinstance(before, (int, float)) and not is_flag and isinstance(value, str):
            value = _number(value)
        if isinstance(before, float) and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        is_other = isinstance(value, str) or (value is not None and isinstance(value, bool) != is_flag)
        if isinstance(before, (bool, int, float)) and is_other:
            kind = {bool: "true or false", int: "a number", float: "a number"}[type(before)]
            raise UsageError(f"{key} is {text}; it is {before} in {self.path}, so {kind} is expected")
        if not isinstance(value, (bool, int, float, str, type(None))):
            raise UsageError(f"{key} is {text}; expected one plain value")
        return value

    def changed(self, values: Mapping[str, Value]) -> str:
        """The file's text with other values."""
        text, table = self.text, self._table
        for key, value in values.items():
            try:
                table = _put(table, key.split("."), value)
            except StopIteration:
                raise UsageError(f"{key} in {self.path} has a dot in its name, and cannot be told apart") from None
            text = self._replace(text, key, value, table)
        return text

    def _replace(self, text: str, key: str, value: Value, wanted: Any) -> str:
        for match in (*_PIECES.finditer(text), *_PLAIN.finditer(text)):
            if not self._reads_as(match[0], self.values[key]):
                continue
            for piece in _spellings(match[0], value):
                other = text[: match.start()] + piece + text[match.end() :]
                if self._is(other, wanted):
                    return other
        raise UsageError(
            f"{key} in {self.path} cannot be changed by itself; it may be an alias or shared with other keys"
        )

    def _reads_as(self, piece: str, value: Value) -> bool:
        try:
            found = self._read_piece(piece)
        except ValueError:
            return False
        return type(found) is type(value) and bool(found == value)

    def _read_piece(self, piece: str) -> Any:
        return self._parse(f"x = {piece}")["x"] if self.path.suffix == ".toml" else self._parse(piece)

    def _is(self, text: str, wanted: Any) -> bool:
        try:
            return repr(self._parse(text)) == repr(wanted)  # False == 0, but they are not the same setting
        except ValueError:
            return False


def _spellings(piece: str, value: Value) -> Iterator[str]:
    """How the value may be written: plainly where the old one was, else as JSON writes it, which all three read."""
    if isinstance(value, str) and piece[0] not in "\"'":
        yield value
    plain = json.dumps(value)
    yield plain
    if isinstance(value, float) and "." not in plain:
        yield plain.replace("e", ".0e")  # YAML wants the dot


def _number(text: str) -> Value:
    """A number that YAML takes for a text, such as 1e-5."""
    try:
        number = float(text)
    except ValueError:
        return text
    return number if math.isfinite(number) else text


def _parser(path: Path) -> Callable[[str], Any]:
    suffix = path.suffix.lower()
    if suffix == ".json":
        return json.loads
    if suffix == ".toml":
        return tomllib.loads
    if suffix in SUFFIXES:
        return _yaml
    raise UsageError(f"{path} is of no known kind; expected {', '.join(SUFFIXES)}")


def _yaml(text: str) -> Any:
    try:
        import yaml
    except ImportError:
        raise MissingExtraError("PyYAML", "yaml") from None
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, IndexError, AttributeError) as error:  # the latter two: a tag without a value
        raise ValueError(str(error)) from error


def _scalars(table: Any, above: str = "") -> Iterator[tuple[str, Value]]:
    """Every plain value, by its dotted key; the items of a list by their number."""
    items = table.items() if isinstance(table, dict) else enumerate(table) if isinstance(table, list) else ()
    for name, value in items:
        key = f"{above}.{name}" if above else str(name)
        if isinstance(value, (dict, list)):
            yield from _scalars(value, key)
        elif isinstance(value, (bool, int, float, str, type(None))):
            yield key, value


def _put(table: Any, keys: list[str], value: Value) -> Any:
    """A copy of the table with one value changed."""
    changed = copy.copy(table)
    at: Any = int(keys[0]) if isinstance(table, list) else next(name for name in table if str(name) == keys[0])
    changed[at] = value if len(keys) == 1 else _put(table[at], keys[1:], value)
    return changed
