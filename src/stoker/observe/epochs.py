"""How many epochs a script means to run: read from its own loop, or looked up in its variables, as no loop tells.

    for epoch in range(start, args.epochs):          the loop around the line where a pass over the loader begins
        train(model, loader)                         in this frame or further out

A loop around a generator that never ends counts steps, not epochs.
"""

import ast
import inspect
import linecache
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any

NAME = re.compile(r"^(?:(?:n|num|max|total|nb)_?)?(?:train_?)?epochs?(?:_?(?:num|count|max|total))?$", re.IGNORECASE)
NOT_A_COUNT = re.compile(r"^(?:train_?)?epoch$", re.IGNORECASE)
"""`epoch` by itself is the loop's variable."""
HOLDERS = {"args", "cfg", "config", "opt", "opts", "options", "hparams", "params", "settings", "self", "trainer"}
RANGES = {"range", "trange"}
MOST_FRAMES = 12

Part = ast.For | ast.While | ast.Call | ast.ExceptHandler
Scope = Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class Planned:
    """A number, and the words of the script that say it."""

    count: int
    name: str
    is_steps: bool = False


def planned(frame: FrameType | None, is_users: Callable[[CodeType], bool]) -> Planned | None:
    """The number of epochs, or of steps, from the frame where a pass begins outwards."""
    return _by_loop(frame, is_users) or _by_name(frame)


# ---- by the loop -----------------------------------------------------------------------------------------


def _by_loop(frame: FrameType | None, is_users: Callable[[CodeType], bool]) -> Planned | None:
    """The innermost loop around the pass that says how often it is gone through."""
    is_steps = False
    begins = True
    while frame is not None:
        if not is_users(frame.f_code):  # a trainer has its own loop, and a variable for it
            found = next(_counts(frame.f_locals), None)
            if found is not None:
                return found
        else:
            is_steps |= begins and _is_asked_for(frame)
            begins = False
            for loop in _around(frame):
                if isinstance(loop, ast.While):
                    if not frame.f_code.co_flags & inspect.CO_GENERATOR:
                        return None  # its end is not to be read
                    is_steps = True
                    break
                if isinstance(loop, ast.For) and (count := _count(loop.iter, _scope(frame))) is not None:
                    return Planned(count, ast.unparse(loop.iter), is_steps) if count else None
        frame = frame.f_back
    return None


def _is_asked_for(frame: FrameType) -> bool:
    """True if one batch is asked for here: the pass begins because another one is over, not because a loop does."""
    parts = _around(frame)
    calls = (part.func for part in parts if isinstance(part, ast.Call))
    return any(isinstance(part, ast.ExceptHandler) for part in parts) or any(
        isinstance(name, ast.Name) and name.id == "next" for name in calls
    )


def _around(frame: FrameType) -> list[Part]:
    """What its function has around the line where it stands, the innermost first."""
    first, line = frame.f_code.co_firstlineno, frame.f_lineno
    return [part for part in _parts(frame.f_code.co_filename) if part.lineno >= first and _has_inside(part, line)]


def _has_inside(part: Part, line: int) -> bool:
    """True if the line is a part of it; of a loop what it goes over is none, that is asked for once."""
    body: Sequence[ast.stmt | ast.expr] = [part] if isinstance(part, ast.Call) else part.body
    return body[0].lineno <= line <= (body[-1].end_lineno or 0)


@lru_cache(maxsize=64)
def _parts(path: str) -> tuple[Part, ...]:
    """All loops, calls and handlers of a file, the last one first; none if it cannot be read."""
    try:
        tree = ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError, RecursionError):
        return ()
    found = [node for node in ast.walk(tree) if isinstance(node, Part)]
    return tuple(sorted(found, key=lambda node: (node.lineno, node.col_offset), reverse=True))


def _count(node: ast.expr, scope: Scope) -> int | None:
    """How often a `for` over this is gone through, if it is a range or something around one; 0 if nobody can tell."""
    if isinstance(node, ast.Call):
        name = getattr(node.func, "id", getattr(node.func, "attr", None))
        values = [_value(one, scope) for one in node.args]
        if name in RANGES:
            return len(range(*values)) if values and all(type(one) is int for one in values) else 0
        return _count(node.args[0], scope) if node.args else None
    value = _value(node, scope)
    value = value if isinstance(value, range) else _held(value, "iterable")  # of a progress bar
    return len(value) if isinstance(value, range) else None


def _value(node: ast.expr, scope: Scope) -> Any:
    """What an expression stands for, as far as that can be had without running any of the script's code."""
    match node:
        case ast.Constant(value):
            return value
        case ast.Name(name):
            return scope(name)
        case ast.Attribute(inner, name):
            return _held(_value(inner, scope), name)
        case ast.Subscript(inner, ast.Constant(key)):
            held = _value(inner, scope)
            return held.get(key) if type(held) is dict else None
        case ast.Call(ast.Name("len"), [inner]):
            value = _value(inner, scope)
            return len(value) if type(value) in (list, tuple, dict, str) else None
        case ast.Call(ast.Name("int"), [inner]):
            value = _value(inner, scope)
            return int(value) if _is_count(value) or (type(value) is str and value.isdigit()) else None
        case ast.BinOp(left, ast.Add() | ast.Sub() as sign, right):
            values = _value(left, scope), _value(right, scope)
            if type(values[0]) is int and type(values[1]) is int:
                return values[0] + values[1] if isinstance(sign, ast.Add) else values[0] - values[1]
    return None


def _held(holder: Any, name: str) -> Any:
    """An attribute, if it is simply there."""
    value = inspect.getattr_static(holder, name, None)
    if inspect.ismemberdescriptor(value):  # a slot
        return value.__get__(holder, type(holder))
    return value


def _scope(frame: FrameType) -> Scope:
    return lambda name: frame.f_locals.get(name, frame.f_globals.get(name))


# ---- by a name -------------------------------------------------------------------------------------------


def _by_name(frame: FrameType | None) -> Planned | None:
    """The first variable, from this frame outwards, that is called as such counts are."""
    for _ in range(MOST_FRAMES):
        if frame is None:
            return None
        for scope in (frame.f_locals, frame.f_globals):
            found = next(_counts(scope), None)
            if found is not None:
                return found
        frame = frame.f_back
    return None


def _counts(scope: dict[str, Any]) -> Iterator[Planned]:
    yield from _plain(scope)
    for holder in HOLDERS & scope.keys():
        value = scope[holder]
        inner = value if isinstance(value, dict) else getattr(value, "__dict__", {})
        yield from (Planned(found.count, f"{holder}.{found.name}") for found in _plain(inner))


def _plain(scope: dict[str, Any]) -> Iterator[Planned]:
    for name, value in list(scope.items()):
        if isinstance(name, str) and NAME.match(name) and not NOT_A_COUNT.match(name) and _is_count(value):
            yield Planned(int(value), name)


def _is_count(value: Any) -> bool:
    if isinstance(value, float):
        return value >= 1 and value.is_integer()
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
