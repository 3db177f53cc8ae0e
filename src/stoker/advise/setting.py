"""What is set, and what there is to spend."""

from dataclasses import dataclass

from stoker.records.diagnosis import Diagnosis
from stoker.records.observed import LoaderFacts

RAM_SHARE = 0.8
"""The share of free memory that workers may take; the rest is for the model, the page cache and surprises."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What is set, and what there is to spend."""

    said: Diagnosis
    facts: LoaderFacts | None
    cores: int
    worker_bytes: int
    free_bytes: int
    files: tuple[str, ...]

    def fits(self, workers: int) -> bool:
        """True if memory holds this many."""
        return workers * self.worker_bytes <= RAM_SHARE * self.free_bytes

    @property
    def workers(self) -> int:
        """How many there are."""
        return self.facts.num_workers if self.facts else 0

    @property
    def is_undivided(self) -> bool:
        """True of a stream that nobody has divided yet: every worker more would bring all of it once more."""
        return self.facts is not None and self.facts.stream and self.workers < 2  # noqa: PLR2004

    @property
    def batch_size(self) -> int | str:
        """As the user set it."""
        return (self.facts.batch_size if self.facts else None) or "…"
