"""Files that a verb is asked to write: looked at before anything is run, because an hour later is too late."""

import os
from pathlib import Path
from typing import Any

import click


class OutFile(click.Path):
    """The path of a file that can be written; its folders are made when it is. `-` is stdout where a verb says so.

    With `dash` off it is refused, because a file of that name is never meant.
    """

    def __init__(self, *, dash: bool = True) -> None:
        super().__init__(path_type=Path, dir_okay=False, writable=True, allow_dash=True)
        self._dash = dash

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path, or what is wrong with it."""
        path = Path(str(super().convert(value, param, ctx)))
        if str(path) == "-":
            if not self._dash:
                self.fail("'-' would be stdout, where this cannot go; expected a file.", param, ctx)
            return path
        folder = next(place for place in path.absolute().parents if os.path.lexists(place))
        if not folder.is_dir():
            self.fail(f"'{path}' cannot be written: '{folder}' is a file.", param, ctx)
        if not os.access(folder, os.W_OK | os.X_OK):
            self.fail(f"'{path}' cannot be written: '{folder}' is not writable.", param, ctx)
        return path
