"""Progress of something that may take long: nothing for two seconds, then a bar on stderr, or plain lines in a pipe."""

import sys
import time
from types import TracebackType
from typing import Any, Self

_QUIET_S = 2.0
_LINE_S = 10.0


class Progress:
    """Counts up to `total`; use it as a context manager. Units are bytes if `in_bytes`."""

    def __init__(self, label: str, total: float, *, in_bytes: bool = True) -> None:
        self.label = label
        self.total = max(1.0, float(total))
        self.done = 0.0
        self._in_bytes = in_bytes
        self._began_s = time.monotonic()
        self._told_s = self._began_s + _QUIET_S - _LINE_S
        self._bar: Any = None
        self._task: Any = None

    def advance(self, amount: float) -> None:
        """So much more is done."""
        self.done += amount
        now = time.monotonic()
        if now - self._began_s < _QUIET_S:
            return
        if sys.stderr.isatty():
            self._show()
        elif now - self._told_s >= _LINE_S:
            self._told_s = now
            print(f"stoker: {self.label}: {self.done / self.total:.0%}", file=sys.stderr, flush=True)

    def _show(self) -> None:
        if self._bar is None:
            self._bar = _bar(self._in_bytes)
            self._task = self._bar.add_task(self.label, total=self.total)
            self._bar.start()
        self._bar.update(self._task, completed=self.done)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


def _bar(in_bytes: bool) -> Any:
    from rich import progress
    from rich.console import Console

    middle = (
        (progress.DownloadColumn(), progress.TransferSpeedColumn()) if in_bytes else (progress.MofNCompleteColumn(),)
    )
    columns = (progress.TextColumn("{task.description}"), progress.BarColumn(), *middle, progress.TimeRemainingColumn())
    return progress.Progress(*columns, console=Console(stderr=True), auto_refresh=True, transient=True)
