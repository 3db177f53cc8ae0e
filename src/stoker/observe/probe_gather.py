"""What is known of a run without any experiment: shapes of batches, what dynamo compiled, how its loader is made."""

import sys
from typing import Any

MOST_BATCHES = 512
NOVEL, FEWEST = 0.3, 8
"""Shapes are new all the time if this share of the batches, and so many, had one that was not seen before."""


class Shapes:
    """The different shapes among the first batches."""

    def __init__(self) -> None:
        self._known: set[Any] = set()
        self.batches = 0

    def see(self, batch: Any) -> None:
        """A batch goes to the loop."""
        if self.batches < MOST_BATCHES:
            self.batches += 1
            self._known.add(_shape(batch))

    def __len__(self) -> int:
        """How many different ones."""
        return len(self._known)

    def are_new(self) -> bool:
        """True if most of what comes has not been seen before."""
        return len(self) >= FEWEST and len(self) > NOVEL * self.batches


def gathered(torch: Any, shapes: Shapes) -> dict[str, Any]:
    """The facts, as they are noted at the end."""
    facts: dict[str, Any] = {"shapes": len(shapes), "shaped_batches": shapes.batches}
    settings = {"cudnn_benchmark": bool(torch.backends.cudnn.benchmark), "threads": int(torch.get_num_threads())}
    return facts | _compiling() | settings


def about(loader: Any) -> dict[str, Any]:
    """How batches are put together."""
    whole = loader.batch_sampler is None  # then the data set itself is asked for a batch at a time
    return {
        "default_collate": str(getattr(loader.collate_fn, "__module__", "")).startswith("torch.utils.data"),
        "batched_fetch": whole or _fetches_batches(loader.dataset),
    }


def _fetches_batches(dataset: Any) -> bool:
    """True if it takes the indices of a whole batch; torch's own `Subset` only passes them on."""
    while (fetch := getattr(dataset, "__getitems__", None)) is not None:
        if not str(getattr(fetch, "__module__", "")).startswith("torch.utils.data"):
            return True
        dataset = getattr(dataset, "dataset", None)
    return False


def shape_of(part: Any) -> tuple[int, ...] | None:
    """The shape of a tensor or an array; None for what has none, or something else of that name."""
    shape = None if getattr(part, "is_nested", False) else getattr(part, "shape", None)
    return tuple(shape) if isinstance(shape, tuple) else None


def _shape(batch: Any, depth: int = 2) -> Any:
    shape = shape_of(batch)
    if shape is not None:
        return shape
    if isinstance(batch, dict):
        batch = list(batch.values())
    if isinstance(batch, (list, tuple)) and depth:
        return tuple(_shape(part, depth - 1) for part in batch[:8])
    return None


def compiled() -> bool:
    """True if dynamo has compiled anything; with `fullgraph=True` it counts no frames, only graphs."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and any(dynamo.counters.get(name) for name in ("frames", "stats"))


def _compiling() -> dict[str, Any]:
    """What dynamo compiled, and how long that took."""
    if not compiled():
        return {}
    dynamo = sys.modules["torch._dynamo.utils"]
    graphs = int(dynamo.counters["stats"].get("unique_graphs", 0))
    spent = sum(dynamo.compilation_time_metrics.get("_compile.compile_inner", ()))
    return {"recompiles": graphs, "compile_s": float(spent)}
