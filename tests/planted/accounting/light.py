"""Without the compiler of torch, which an optimizer's first step imports, for longer than scripts like these run."""

import sys
import types
from typing import Any


def without_compiler() -> None:
    """Stand in for the two functions of it that torch calls where nothing is compiled."""
    compiler = types.ModuleType("torch._dynamo")
    compiler.__dict__.update(graph_break=lambda: None, disable=_itself)
    sys.modules["torch._dynamo"] = compiler


def _itself(function: Any, *_: Any, **__: Any) -> Any:
    return function
