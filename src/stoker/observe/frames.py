"""Which line of the user's own code a stack stands in."""

import os
import sys
import sysconfig
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from stoker.records.observed import OWN

_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH120, PTH100  pathlib is slow to import


def _library_roots() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    roots = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return (*sorted(root + os.sep for root in roots), _OWN + os.sep, "<frozen", "<__array_function__")


class Frames:
    """Numbers places as they are first seen, and notes each of them once."""

    def __init__(self, note: Callable[..., None]) -> None:
        self._note = note
        self._roots = _library_roots()
        self._ours: dict[CodeType, bool] = {}
        self._numbers: dict[tuple[CodeType, int, CodeType, bool], int] = {}
        self._steps: dict[CodeType, int] = {}

    def stepping(self, frame: FrameType | None) -> None:
        """An optimizer steps here: in each of the user's functions on the stack, what stands below comes after."""
        while frame is not None:
            if self.is_users(frame.f_code):
                self._steps[frame.f_code] = max(frame.f_lineno, self._steps.get(frame.f_code, 0))
            frame = frame.f_back

    def _is_after_step(self, frame: FrameType | None) -> bool:
        while frame is not None:
            step = self._steps.get(frame.f_code)
            if step is not None:
                return frame.f_lineno > step
            frame = frame.f_back
        return False

    def place(self, frame: FrameType) -> int:
        """The number of the place where this stack stands: the user's innermost line and the leaf below it."""
        leaf = frame.f_code
        found: FrameType | None = frame
        while found is not None and not self.is_users(found.f_code):
            found = found.f_back
        found = found or self._not_ours(frame)
        after_step = bool(self._steps) and self._is_after_step(found)
        key = (found.f_code, found.f_lineno, leaf, after_step)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._numbers)
            self._note("line", **_describe(number, found, leaf), after_step=after_step)
        return number

    def _not_ours(self, frame: FrameType) -> FrameType:
        """Where no line is the user's: the innermost one that is not Stoker's own, if there is one."""
        found: FrameType | None = frame
        while found is not None and found.f_code.co_filename.startswith(_OWN):
            found = found.f_back
        return found or frame

    def forget(self) -> None:
        """Start numbering again: a forked child writes its own notes."""
        self._numbers.clear()

    def is_users(self, code: CodeType) -> bool:
        """True if it is neither a library's nor Stoker's."""
        ours = self._ours.get(code)
        if ours is None:
            name = code.co_filename
            library = name.startswith(self._roots) or f"{os.sep}site-packages{os.sep}" in name
            ours = self._ours[code] = not (library or _is_generated(name))
        return ours


def _is_generated(name: str) -> bool:
    """True for code that a library has written while the script ran: nobody can change a line of it."""
    if name == "<string>":  # dataclasses and namedtuples write such; so is called what stands after `python -c`
        return sys.argv[:1] != ["-c"]
    cache = os.environ.get("TORCHINDUCTOR_CACHE_DIR")  # set by torch too, once it compiles
    return (
        name.startswith("<eval_with_key>")
        or f"{os.sep}torchinductor_" in name
        or bool(cache and name.startswith(os.path.join(cache, "")))  # noqa: PTH118  pathlib is slow to import
    )


def _describe(number: int, frame: FrameType, leaf: CodeType) -> dict[str, Any]:
    module = _module_of(leaf.co_filename)
    code = frame.f_code
    return {
        "number": number,
        "file": OWN if code.co_filename.startswith(_OWN) else code.co_filename,
        "line": frame.f_lineno,
        "function": code.co_qualname,
        "leaf": f"{module}.{leaf.co_qualname}",
    }


def _module_of(path: str) -> str:
    """`…/site-packages/torch/nn/linear.py` is `torch.nn.linear`."""
    for root in sorted(sys.path, key=len, reverse=True):
        if root and path.startswith(root + os.sep):
            path = path[len(root) + 1 :]
            break
    return path.removesuffix(".py").removesuffix("/__init__").replace(os.sep, ".")


def users_frame(frame: FrameType | None, frames: Frames) -> FrameType | None:
    """The innermost frame of the user's own code, from this frame outwards."""
    while frame is not None and not frames.is_users(frame.f_code):
        frame = frame.f_back
    return frame
