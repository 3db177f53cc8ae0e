"""Where scripts write what they are doing: prints, logging, progress bars, experiment trackers."""

from types import ModuleType
from typing import Any

from stoker.observe.patches import Patches
from stoker.observe.recorder import Recorder
from stoker.observe.spans import spanned
from stoker.records.observed import Kind

KNOWN: dict[str, tuple[str, tuple[str, ...]]] = {
    "builtins": ("", ("print",)),
    "logging": ("Logger", ("handle",)),
    "tqdm.std": ("tqdm", ("refresh", "set_postfix", "set_postfix_str", "set_description", "close")),
    "torch.utils.tensorboard.writer": (
        "SummaryWriter",
        ("add_scalar", "add_scalars", "add_histogram", "add_image", "add_images", "add_text", "flush"),
    ),
    "wandb.sdk.wandb_run": ("Run", ("log",)),
    "mlflow": ("", ("log_metric", "log_metrics")),
}
"""Module → its class (or none) → the methods whose time is logging."""


def install(name: str, module: ModuleType, recorder: Recorder, patches: Patches) -> None:
    """Time the known methods of one module."""
    owner_name, methods = KNOWN[name]
    owner: Any = getattr(module, owner_name) if owner_name else module
    for method in methods:
        if hasattr(owner, method):
            patches.set(owner, method, spanned(getattr(owner, method), recorder, Kind.LOG))
