"""`stoker demo`: one of the five cases, end to end."""

import click


@click.command()
def demo() -> None:
    """Run one of the five cases, end to end."""
