"""What a knob is, and the values it may have."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from stoker.errors import UsageError
from stoker.records.observed import Value

Undo = Callable[[], None]
Scope = Literal["loader", "process", "model", "optimizer"]
Risk = Literal["low", "medium", "high"]


@dataclass(frozen=True, slots=True)
class Whole:
    """Whole numbers from `low` up."""

    low: int

    def check(self, value: Value) -> bool:
        """True if value is legal."""
        return isinstance(value, int) and not isinstance(value, bool) and value >= self.low

    def parse(self, text: str) -> Value:
        """The value a user typed, not yet checked."""
        return int(text) if text.lstrip("-").isdecimal() else text

    def __str__(self) -> str:
        return f"{self.low} or more"


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of a few words."""

    words: tuple[str, ...]

    def check(self, value: Value) -> bool:
        """True if value is legal."""
        return value in self.words

    def parse(self, text: str) -> Value:
        """The value a user typed, not yet checked."""
        return text

    def __str__(self) -> str:
        return ", ".join(self.words)


@dataclass(frozen=True, slots=True)
class Switch:
    """On or off."""

    def check(self, value: Value) -> bool:
        """True if value is legal."""
        return isinstance(value, bool)

    def parse(self, text: str) -> Value:
        """The value a user typed, not yet checked."""
        return {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}.get(text.lower(), text)

    def __str__(self) -> str:
        return "true or false"


@dataclass(frozen=True, slots=True)
class Knob:
    """One setting. `changes_results` is true if even the last bit of a trained weight could differ."""

    name: str
    meaning: str
    scope: Scope
    values: Whole | OneOf | Switch
    risk: Risk
    changes_results: bool
    read: Callable[[Any], Value]
    put: Callable[[Any, Any], Undo]

    def apply(self, target: Any, value: Value) -> Undo:
        """Set the knob on its target; the function returned puts everything back."""
        return self.put(target, self.check(value))

    def check(self, value: Value) -> Value:
        """The value itself if it is legal."""
        if not self.values.check(value):
            raise UsageError(f"{self.name} is {value}; expected {self.values}. Leave it out to keep the script's own.")
        return value

    def parse(self, text: str) -> Value:
        """The legal value that a user typed."""
        return self.check(self.values.parse(text.strip()))
