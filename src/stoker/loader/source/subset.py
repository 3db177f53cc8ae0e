"""A part of a source that is the same one on every machine and in every process."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stoker.errors import UsageError
from stoker.loader.source.blocks import Ints
from stoker.loader.source.manifest import Manifest

Part = float | int | Sequence[str] | None
"""A share of all images, a number of them, or the first directories of their keys; None is all of them."""


@dataclass(frozen=True)
class Subset:
    """What a user asked for."""

    part: Part
    seed: int = 0

    @classmethod
    def parse(cls, said: Any) -> "Subset":
        """Back from JSON."""
        return cls(tuple(said["part"]) if isinstance(said["part"], list) else said["part"], int(said["seed"]))

    def to_json(self) -> dict[str, Any]:
        """For a file."""
        part = self.part
        return {"part": list(part) if isinstance(part, Sequence) else part, "seed": self.seed}


def choose(manifest: Manifest, subset: Subset) -> Ints:
    """The rows of a subset, in order."""
    part, rows = subset.part, len(manifest)
    if part is None:
        return np.arange(rows)
    if isinstance(part, Sequence):
        return _of_directories(manifest, part)
    most = 1.0 if isinstance(part, float) else rows
    if isinstance(part, bool) or not 0 < part <= most:  # not a number is neither
        raise UsageError(f"subset is {part!r}; expected a share up to 1.0, a number up to {rows}, or names of classes")
    count = part if isinstance(part, int) else round(part * rows)
    # Philox's raw stream is the same in every numpy release.
    keys = np.random.Philox(key=subset.seed & (2**64 - 1)).random_raw(rows)
    return np.sort(np.argsort(keys, kind="stable")[: max(1, count)])


def _of_directories(manifest: Manifest, names: Sequence[str]) -> Ints:
    wanted = set(names)
    folders = [str(key).partition("/")[0] for key in manifest.keys.to_pylist()]
    missing = sorted(wanted - set(folders))
    if missing or not wanted or isinstance(names, str):
        said = missing[0] if missing and not isinstance(names, str) else names
        raise UsageError(f"subset names {said!r}; expected a list of directories below {manifest.url}")
    return np.array([row for row, folder in enumerate(folders) if folder in wanted], np.int64)
