"""Numbers that a verb is given."""

import math
from collections.abc import Callable
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


def sides(example: str) -> Callable[[click.Context, click.Parameter, str | None], tuple[int, ...] | None]:
    """What reads a number for each side, such as 72,136,136 or 72x136x136."""

    def parse(_: click.Context, __: click.Parameter, value: str | None) -> tuple[int, ...] | None:
        if value is None:
            return None
        parts = value.replace("x", ",").split(",")
        if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
            raise click.BadParameter(f"{value!r} is no size; expected {example}")
        return tuple(int(part) for part in parts)

    return parse
