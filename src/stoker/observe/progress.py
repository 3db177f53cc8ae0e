"""How far a run has come, read from what its processes have written so far."""

from array import array
from pathlib import Path

from stoker.records.observed import ARG, Kind

_MASK = (1 << ARG) - 1
_BATCH = Kind.NEXT << 1 | 1
_STEP = Kind.OPTIMIZER << 1 | 1


class Progress:
    """Counts batches and optimizer steps; reads only what is new."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read: dict[Path, int] = {}
        self.batches = 0
        self.steps = 0

    def update(self) -> None:
        """Look again."""
        for path in self._directory.glob("*.events"):
            self._count(path)

    def _count(self, path: Path) -> None:
        seen = self._read.get(path, 0)
        with path.open("rb") as file:
            file.seek(seen)
            data = file.read()
        data = data[: len(data) - len(data) % 8]
        self._read[path] = seen + len(data)
        numbers = array("q", data)
        self.batches += sum(1 for number in numbers if number & _MASK == _BATCH and number < 1 << 32)
        self.steps += sum(1 for number in numbers if number & _MASK == _STEP and number < 1 << 32 and number >> ARG)
