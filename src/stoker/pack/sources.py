"""Where the work of a plan gets its sources: files of this machine as they are, or objects of a store as files."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import numpy as np

from stoker.errors import ClosedError
from stoker.loader.source.volume import Volume, open_volume
from stoker.pack.plan import Output, Piece, Plan, SourceFile, check_unchanged


class Sources:
    """The sources of a plan, while it is carried out."""

    memory_bytes = 0
    """What they take, besides the work itself."""
    is_stopped = False

    def check(self, files: Sequence[SourceFile]) -> None:
        """Refuse what is not what it was when the plan was made; asked again when they were read."""

    def expect(self, needs: Sequence[Sequence[int]], folder: Path) -> None:
        """From now on these are used: the files, by number, of each piece of work. The folder is scratch."""

    def disk_bytes(self, needs: Sequence[Sequence[int]], workers: int) -> int:
        """What they take of the disk, at most."""
        return 0

    def local(self, file: SourceFile) -> AbstractContextManager[str]:
        """A source as a file of this machine, once for each piece of work that needs it."""
        raise NotImplementedError

    def volume(self, file: SourceFile, *, fill_missing: bool) -> Volume:
        """A source as a volume."""
        raise NotImplementedError

    def stop(self) -> None:
        """End what is under way: whoever waits is told. Safe to call twice."""
        self.is_stopped = True

    def go_on(self) -> None:
        """Asked by work that takes long: an error if nobody waits for it any more."""
        if self.is_stopped:
            raise ClosedError("packing was stopped")

    def close(self) -> None:
        """Stop, and remove what was brought."""


class Here(Sources):
    """Files of this machine, as they are."""

    def check(self, files: Sequence[SourceFile]) -> None:
        """Refuse a file that is not what it was when the plan was made."""
        for file in files:
            check_unchanged(file)

    def local(self, file: SourceFile) -> AbstractContextManager[str]:
        """As it is."""
        return nullcontext(file.path)

    def volume(self, file: SourceFile, *, fill_missing: bool) -> Volume:
        """As it is."""
        return open_volume(file.path, fill_missing=fill_missing)


HERE: Sources = Here()


def needed(plan: Plan, runs: Sequence[Piece | Output]) -> list[list[int]]:
    """The files, by number, that each piece of work reads: runs are of rows or, of text and images, of files."""
    if plan.kind not in ("records", "rows"):
        return [list(range(run.start, run.stop)) for run in runs]
    ends = np.cumsum([file.rows or 0 for file in plan.files])
    firsts = np.searchsorted(ends, [run.start for run in runs], side="right").tolist()
    lasts = np.searchsorted(ends, [run.stop for run in runs], side="left").tolist()
    spans = (range(first, last + 1) for first, last in zip(firsts, lasts, strict=True))
    return [[number for number in span if plan.files[number].rows] for span in spans]
