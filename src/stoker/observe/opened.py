"""Every file that a process opens or maps, noted, so that its pages can be dropped before the next run (`--cold`)."""

import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from stoker.observe.probe_counts import IGNORED, is_code

MOST = 200_000
FIELDS = 5
"""Columns of /proc/self/maps before the name."""


class Opened:
    """The names of one process; forked children go on with the same hook and note what is new to them."""

    def __init__(self, note: Callable[..., None]) -> None:
        self._note = note
        self._names: set[str] = set()

    def start(self) -> None:
        """An audit hook cannot be taken off; it ends with the process."""
        sys.addaudithook(self._hear)

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(args[0], str) and len(self._names) < MOST:
            self._add(args[0])

    def _add(self, name: str) -> None:
        if name in self._names or name.startswith(IGNORED) or is_code(name):
            return
        self._names.add(name)
        self._note("opened", path=str(Path(name).absolute()))

    def finish(self) -> None:
        """Files that were mapped without being opened from Python."""
        with suppress(OSError):
            for line in Path("/proc/self/maps").read_text().splitlines():
                fields = line.split(maxsplit=FIELDS)
                if len(fields) > FIELDS and "x" not in fields[1]:
                    self._add(fields[FIELDS])
