"""How far a run has come, read from what its processes have written so far."""

from array import array
from pathlib import Path

from stoker.records.observed import ARG, SMALLEST_TIME, Kind

_MASK = (1 << ARG) - 1
_BATCH = Kind.NEXT << 1 | 1
_STEP = Kind.OPTIMIZER << 1 | 1
_DOZES = Kind.DOZE << 1


class Progress:
    """Counts batches and optimizer steps; reads only what is new."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read: dict[Path, int] = {}
        self._dozing: set[Path] = set()
        self._dozed = self._seen = 0
        self.batches = 0

    @property
    def steps(self) -> int:
        """Steps of optimizers; while their hooks doze there are as many to a batch as before."""
        awake = self.batches - self._dozed
        return self._seen + (round(self._seen / awake * self._dozed) if awake else 0)

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
        for number in array("q", data):
            if number >= SMALLEST_TIME:
                continue
            code = number & _MASK
            if code == _BATCH:
                self.batches += 1
                self._dozed += path in self._dozing
            elif code == _STEP and number >> ARG:
                self._seen += 1
            elif code == _DOZES:
                self._dozing.add(path)
            elif code == _DOZES | 1:
                self._dozing.discard(path)
