"""Stoker finds out why a PyTorch training is slow, proves it, fixes it, and writes the decision down.

Public names are loaded on first use, so that `import stoker` brings in neither torch nor pyarrow.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stoker import errors, sim
    from stoker.observe.inside import watch

_HOME = {
    "errors": "stoker.errors",
    "sim": "stoker.sim",
    "watch": "stoker.observe.inside",
}

__all__ = [
    "errors",
    "sim",
    "watch",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'stoker' has no attribute {name!r}; it has {', '.join(__all__)}")
    module = import_module(_HOME[name])
    return module if _HOME[name].endswith(f".{name}") else getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
