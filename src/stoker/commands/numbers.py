"""Numbers that a verb is given."""

import math
from typing import Any

import click


class Finite(click.FloatRange):
    """A number within bounds; `nan` is within all of them, and means nothing."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number, or what is wrong with it."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is no number to reckon with.", param, ctx)
        return number
