"""Records to JSON and back; `encode` and `decode` are each other's inverse for every record."""

import dataclasses
import types
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, TypeVar

R = TypeVar("R")


def encode(value: Any) -> Any:
    """A record as what `json.dumps` takes."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {key: encode(getattr(value, name)) for name, key, _, _ in _layout(type(value))}
    if isinstance(value, Mapping):
        return {key: encode(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [encode(item) for item in value]
    return value


def decode(kind: type[R], data: Any) -> R:
    """The record of type `kind` that `encode` made `data` from; raises ValueError naming the wrong field."""
    return typing.cast("R", _decode(kind, data, kind.__name__))


@cache
def _layout(kind: type) -> tuple[tuple[str, str, Any, bool], ...]:
    """Name, JSON key and type of each field of a record, and whether it must be there."""
    hints = typing.get_type_hints(kind)
    fields = dataclasses.fields(kind)
    none = dataclasses.MISSING
    return tuple(
        (f.name, f.metadata.get("key", f.name), hints[f.name], f.default is none and f.default_factory is none)
        for f in fields
    )


def _decode(kind: Any, data: Any, where: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return _decode_record(typing.cast("type", kind), data, where)
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return _decode_union(args, data, where)
    if origin is Literal:
        return _checked(data in args, data, f"one of {', '.join(map(str, args))}", where)
    if origin is tuple:
        _checked(isinstance(data, list), data, "a list", where)
        return tuple(_decode(args[0], item, f"{where}[{i}]") for i, item in enumerate(data))
    if origin is Mapping:
        _checked(isinstance(data, dict), data, "an object", where)
        return {key: _decode(args[1], item, f"{where}.{key}") for key, item in data.items()}
    if kind is float:  # JSON does not tell 1.0 from 1
        return float(_checked(_is_plain(data, (int, float)), data, "a number", where))
    return _checked(_is_plain(data, (kind,)), data, kind.__name__, where)


def _decode_record(kind: type, data: Any, where: str) -> Any:
    _checked(isinstance(data, dict), data, "an object", where)
    layout = _layout(kind)
    missing = [key for _, key, _, is_needed in layout if is_needed and key not in data]
    if missing:
        raise ValueError(f"{where} lacks {', '.join(missing)}")
    # What has a default may be missing: an older Stoker did not write it.
    return kind(**{name: _decode(hint, data[key], f"{where}.{key}") for name, key, hint, _ in layout if key in data})


def _decode_union(args: tuple[Any, ...], data: Any, where: str) -> Any:
    if data is None and type(None) in args:
        return None
    exact = [arg for arg in args if isinstance(arg, type) and type(data) is arg]
    if exact:
        return data
    others = [arg for arg in args if arg is not type(None)]
    for arg in others:
        try:
            return _decode(arg, data, where)
        except ValueError:
            continue
    return _checked(False, data, " or ".join(str(arg) for arg in args), where)


def _is_plain(data: Any, kinds: tuple[type, ...]) -> bool:
    """True if data is of one of these kinds; a bool is not an int here."""
    return isinstance(data, kinds) and (bool in kinds or not isinstance(data, bool))


def _checked(ok: bool, data: Any, expected: str, where: str) -> Any:
    if not ok:
        raise ValueError(f"{where} is {data!r}; expected {expected}")
    return data
