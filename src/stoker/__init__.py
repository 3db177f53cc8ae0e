"""Stoker finds out why a PyTorch training is slow, proves it, fixes it, and writes the decision down.

Public names are loaded on first use, so that `import stoker` brings in neither torch nor pyarrow.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stoker import errors, sim
    from stoker.loader.front import Loader
    from stoker.loader.sampler import BlockSampler
    from stoker.loader.source import open  # noqa: A004  what users write
    from stoker.observe.inside import watch

_HOME = {
    "BlockSampler": "stoker.loader.sampler",
    "Loader": "stoker.loader.front",
    "errors": "stoker.errors",
    "open": "stoker.loader.source",
    "sim": "stoker.sim",
    "watch": "stoker.observe.inside",
}

__all__ = [
    "BlockSampler",
    "Loader",
    "errors",
    "open",
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
