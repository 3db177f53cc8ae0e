"""A start that takes half the time; scripts like these run for less. Imported before torch.

Left out are garbage collections of what torch's import makes, and torch's compiler, which an optimizer's first step
would import.
"""

import gc
import sys
import types
from typing import Any

gc.disable()


def started(*, compiles: bool = False) -> None:
    """All is imported: collect from here on, and stand in for the two functions of the compiler that torch calls."""
    gc.freeze()
    gc.enable()
    if compiles:
        return
    compiler = types.ModuleType("torch._dynamo")
    compiler.__dict__.update(graph_break=lambda: None, disable=_itself)
    sys.modules["torch._dynamo"] = compiler


def _itself(function: Any, *_: Any, **__: Any) -> Any:
    return function
