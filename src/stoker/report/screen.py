"""Rows on a terminal that change in place: below what is printed there by others, or where the cursor stands.

Nothing here reads the terminal or takes over its input; what was changed is put back by `close`.
"""

import os
from collections.abc import Sequence
from typing import Protocol, TextIO

from rich.console import Console
from rich.text import Text

SAVE, RESTORE = "\x1b7", "\x1b8"
CLEAR_LINE, CLEAR_BELOW = "\x1b[2K", "\x1b[J"
HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"
NEXT_LINE = "\x1b[E"
DOWN = "\x1bD"  # unlike a line feed it keeps the column: the script may be in the middle of a line
LEAST_ROWS = 6
"""Lines that are left to the script; a terminal too low for them gets fewer rows of ours."""


class Screen(Protocol):
    """Where rows are drawn."""

    def size(self) -> tuple[int, int]:
        """Columns and rows that can be used."""

    def draw(self, rows: Sequence[Text]) -> None:
        """Show these rows instead of the ones before."""

    def close(self) -> None:
        """Leave the terminal as it was found."""


class Ink:
    """Rows as the bytes of one terminal: in its colours, unless the user wants none, and in letters that it has."""

    def __init__(self, stream: TextIO) -> None:
        self._fd = stream.fileno()
        self._encoding = stream.encoding or "utf-8"
        self._console = Console(file=stream, force_terminal=True, legacy_windows=False)

    def row(self, row: Text, width: int) -> str:
        """One row, cut to `width` cells."""
        row = row.copy()
        row.truncate(width)
        if self._console.no_color:
            return row.plain
        with self._console.capture() as captured:
            self._console.print(row, end="", no_wrap=True, overflow="ignore", crop=False)
        return captured.get()

    def write(self, text: str) -> None:
        """All at once, so that what others print does not come in between."""
        data = memoryview(text.encode(self._encoding, "replace"))
        while data:
            data = data[os.write(self._fd, data) :]


def _size(stream: TextIO) -> tuple[int, int]:
    try:
        columns, lines = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        return 80, 24
    return columns or 80, lines or 24


class Below:
    """The last rows of the terminal; everything else scrolls above them, as it would without us.

    The script writes to the terminal itself. Only the region that scrolls is made smaller, so its lines, bars and
    colours are what they were.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._ink = stream, Ink(stream)
        self._height = 0
        self._seen = (0, 0)

    def size(self) -> tuple[int, int]:
        """Columns and rows that can be used; the last column stays free, so that nothing ever wraps."""
        columns, lines = _size(self._stream)
        return columns - 1, max(lines - LEAST_ROWS, 1)

    def draw(self, rows: Sequence[Text]) -> None:
        """Show these rows; more than before take more of the terminal, fewer leave it as it is."""
        columns, most = self.size()
        rows = rows[:most]
        if (columns, most) != self._seen:
            self.close()
        if len(rows) > self._height:
            self._take(len(rows))
        self._seen = (columns, most)
        top = _size(self._stream)[1] - self._height + 1
        cells = [*(self._ink.row(row, columns) for row in rows), *[""] * (self._height - len(rows))]
        lines = [f"\x1b[{top + i};1H{CLEAR_LINE}{cell}" for i, cell in enumerate(cells)]
        self._ink.write(SAVE + "".join(lines) + RESTORE)

    def _take(self, height: int) -> None:
        """Scroll what is there upwards and keep the last rows out of the scrolling."""
        lines = _size(self._stream)[1]
        more = height - self._height
        self._ink.write(f"{DOWN * more}\x1b[{more}A{SAVE}\x1b[1;{lines - height}r{RESTORE}")
        self._height = height

    def close(self) -> None:
        """Give the rows back: all below the cursor, wherever a terminal that was resized has put them."""
        if not self._height:
            return
        self._ink.write(f"{SAVE}\x1b[r{RESTORE}{SAVE}{NEXT_LINE}{CLEAR_BELOW}{RESTORE}")
        self._height = 0


class Here:
    """Rows where the cursor stands, redrawn in place; the last ones stay when it is closed."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._ink = stream, Ink(stream)
        self._height = 0

    def size(self) -> tuple[int, int]:
        """Columns and rows that can be used."""
        columns, lines = _size(self._stream)
        return columns - 1, max(lines - 1, 1)

    def draw(self, rows: Sequence[Text]) -> None:
        """Show these rows instead of the ones before."""
        columns, most = self.size()
        up = f"\x1b[{self._height}A" if self._height else HIDE
        lines = "".join(f"{CLEAR_LINE}{self._ink.row(row, columns)}\n" for row in rows[:most])
        self._ink.write(f"{up}\r{lines}{CLEAR_BELOW}")
        self._height = min(len(rows), most)

    def close(self) -> None:
        """Let the cursor be seen again."""
        if self._height:
            self._ink.write(SHOW)
            self._height = 0
