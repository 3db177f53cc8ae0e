"""Waits in which Ctrl-C is heard: one that comes just as a thread begins to wait goes unheard until the wait ends."""

from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from threading import Event
from typing import Any

HEAR_S = 0.2
"""How long it may go unheard."""


def for_event(event: Event) -> None:
    """Until it is set."""
    while not event.wait(HEAR_S):
        pass


def for_all(running: Sequence[Future[Any]]) -> bool:
    """Until all are done, or one has failed. True if none has."""
    while wait(running, HEAR_S, FIRST_EXCEPTION).not_done and not _failed(running):
        pass
    return not _failed(running)


def _failed(running: Sequence[Future[Any]]) -> bool:
    return any(one.done() and one.exception() for one in running)
