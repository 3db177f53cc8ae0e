"""A record in which every free string is an attack."""

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

ATTACK = '</script><script>window.hacked=1</script>"\'><img src=x onerror="window.hacked=1">{{7*7}}'
R = TypeVar("R")


def poisoned(record: R) -> R:
    """The same record, with the attack in every string that its type leaves free."""
    assert dataclasses.is_dataclass(record)
    hints = typing.get_type_hints(type(record))
    changed = {f.name: _poison(getattr(record, f.name), hints[f.name]) for f in dataclasses.fields(record)}
    return dataclasses.replace(record, **changed)  # type: ignore[type-var]


def _poison(value: Any, hint: Any) -> Any:
    if typing.get_origin(hint) is Literal:
        return value
    if typing.get_origin(hint) in (types.UnionType, typing.Union) and any(
        typing.get_origin(arg) is Literal for arg in typing.get_args(hint)
    ):
        return value
    if dataclasses.is_dataclass(value):
        return poisoned(value)
    if isinstance(value, str):
        return f"{value}{ATTACK}"
    if isinstance(value, tuple):
        inner = typing.get_args(hint)[0] if typing.get_args(hint) else Any
        return tuple(_poison(item, inner) for item in value)
    if isinstance(value, Mapping):
        return {f"{key}{ATTACK}": _poison(item, Any) for key, item in value.items()}
    return value
