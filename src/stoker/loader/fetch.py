"""Batches out of ready windows: their rows picked, failed blocks left out, gathered and mapped."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

import numpy as np

from stoker.errors import DataError, MapError
from stoker.loader.device import Copier
from stoker.loader.ranks import Ticket
from stoker.loader.source.blocks import Ints
from stoker.loader.source.interface import BadRowsError, Batch, Lease, Pick, Place, Reader, Skipped, Source, split
from stoker.loader.windows import Ready

OnError = Literal["raise", "skip"]
NOTHING: Any = object()
"""In place of a batch of which nothing is left: None may be somebody's batch."""
_SKIPPED_LISTED = 1000


@dataclass(frozen=True, slots=True)
class Made:
    """A batch, or NOTHING if all of its rows had to be left out."""

    batch: Any
    rows: int
    skipped_rows: int
    places: tuple[Skipped, ...]


@dataclass(frozen=True, slots=True)
class Failed:
    """Why a batch could not be made; the consumer gets it, in its turn."""

    error: BaseException


class Batches:
    """Makes batches out of ready windows; called by many threads at once."""

    def __init__(
        self,
        source: Source,
        lease: Lease,
        *,
        on_error: OnError,
        map: Callable[[Batch], Any] | None,  # noqa: A002  the name that the public argument has
        seen: Callable[[Ints], None],
        shape: Callable[[Batch], Batch],
        copier: Copier | None = None,
    ) -> None:
        self._source = source
        self._lease = lease
        self._on_error = on_error
        self._map = map
        self._seen = seen
        self._shape = shape
        self._copier = copier
        self._places: set[Skipped] = set()
        self.skipped: list[Skipped] = list(source.skipped)
        self.skipped_rows = sum(skipped.rows for skipped in source.skipped)

    def make_all(self, tickets: Sequence[Ticket], windows: list[Ready], reader: Reader | None) -> list[Made | Failed]:
        """Batches of the same windows; an error stands for one that could not be made."""
        if len(tickets) > 1 and not any(ready.failed for ready in windows):
            # Bad data are found out one by one, so that they are said of the right batch.
            with suppress(DataError, BadRowsError):
                return self._make_at_once(tickets, windows)
        return [self._try(ticket, windows, reader) for ticket in tickets]

    def _make_at_once(self, tickets: Sequence[Ticket], windows: list[Ready]) -> list[Made | Failed]:
        """One gather for all: at memory speed, what a gather costs besides copying weighs as much as the copy."""
        pick = self._pick(tickets, windows)
        sizes = [ticket.stop - ticket.start for ticket in tickets]
        batches = split(self._source.gather(pick, self._lease), sizes)
        found: list[Made | Failed] = []
        for ticket, batch, size, end in zip(tickets, batches, sizes, accumulate(sizes), strict=True):
            rows = pick.rows[end - size : end]
            try:
                found.append(Made(self._finish(batch, ticket, rows), len(rows), 0, ()))
            except Exception as error:  # noqa: BLE001  it belongs to the consumer, at its turn
                found.append(Failed(error))
        return found

    def _try(self, ticket: Ticket, windows: list[Ready], reader: Reader | None) -> Made | Failed:
        try:
            return self._make(ticket, windows, reader)
        except Exception as error:  # noqa: BLE001
            return Failed(error)

    def _make(self, ticket: Ticket, windows: list[Ready], reader: Reader | None) -> Made:
        """The batch, without the rows that had to be left out."""
        pick = self._pick([ticket], windows)
        places: tuple[Skipped, ...] = ()
        if any(ready.failed for ready in windows):
            pick, places = self._without_failed(pick, [one for ready in windows for one in ready.loaded])
        gathered = None
        while gathered is None and len(pick.rows):
            try:
                gathered = (reader or self._source).gather(pick, self._lease)
            except BadRowsError as bad:
                pick, more = self._without_bad(pick, bad)
                places += more
        skipped = ticket.stop - ticket.start - len(pick.rows)
        if gathered is None:
            return Made(NOTHING, 0, skipped, places)
        return Made(self._finish(gathered, ticket, pick.rows), len(pick.rows), skipped, places)

    def _finish(self, gathered: Batch, ticket: Ticket, rows: Ints) -> Any:
        """What is done with a whole batch: shaped, mapped, sent to the device."""
        self._seen(rows)
        batch = self._shape(gathered)
        made = batch if self._map is None else self._mapped(batch, ticket, rows)
        return made if self._copier is None else self._copier.start(made)

    def deliver(self, made: Made) -> Any:
        """What the consumer gets, or NOTHING; called in its thread. Only now does what was left out count."""
        self.skipped_rows += made.skipped_rows
        for place in made.places:
            if place not in self._places and len(self.skipped) < _SKIPPED_LISTED:
                self._places.add(place)
                self.skipped.append(place)
        return made.batch if self._copier is None or made.batch is NOTHING else self._copier.finish(made.batch)

    def _pick(self, tickets: Sequence[Ticket], windows: list[Ready]) -> Pick:
        spans, epoch = _spans(tickets), tickets[0].epoch
        parts, slots, place = [], 0, Place()
        for ready in windows:
            if ready.error is not None:
                raise ready.error
            window = ready.window
            assert window is not None
            place = Place(window.key[0], epoch, tickets[0].start)
            for start, stop in spans:
                slot, inner = window.place(max(start, window.start), min(stop, window.stop))
                parts.append((window.first[slot] + inner, slot + slots, inner))
            slots += len(window.blocks)
        held = [ready.stacked for ready in windows]
        if len(parts) == 1:
            return Pick(*parts[0], held, place)
        rows, slot, inner = (np.concatenate(column) for column in zip(*parts, strict=True))
        return Pick(rows, slot, inner, held, place)

    def _without_failed(self, pick: Pick, loaded: list[Any]) -> tuple[Pick, tuple[Skipped, ...]]:
        """The rows whose blocks could be loaded, and the places of the others."""
        failed = [slot for slot in np.unique(pick.slot).tolist() if isinstance(loaded[slot], BaseException)]
        if not failed:
            return pick, ()
        error = loaded[failed[0]]
        if self._on_error == "raise" or not isinstance(error, DataError):
            raise error
        places = tuple(self._place(int(pick.rows[pick.slot == slot][0]), loaded[slot]) for slot in failed)
        return pick.where(~np.isin(pick.slot, failed)), places

    def _without_bad(self, pick: Pick, bad: BadRowsError) -> tuple[Pick, tuple[Skipped, ...]]:
        """The rows that could be gathered, and the places of the others."""
        if self._on_error == "raise":
            raise next(iter(bad.errors.values())) from None
        keep = np.ones(len(pick.rows), bool)
        keep[list(bad.errors)] = False
        places = tuple(self._place(int(pick.rows[at]), error) for at, error in bad.errors.items())
        return pick.where(keep), places

    def _place(self, row: int, error: DataError) -> Skipped:
        block = self._source.blocks.of(np.array([row]))
        return Skipped(error.path, error.row or 0, int(self._source.blocks.sizes(block)[0]), error.reason)

    def _mapped(self, batch: Batch, ticket: Ticket, rows: Ints) -> Any:
        assert self._map is not None
        try:
            mapped = self._map(batch)
            if mapped is None:
                raise TypeError("it returned None; let it return the batch")  # noqa: TRY301  one error for both
        except Exception as error:
            path, row = self._source.locate(int(rows[0]))
            raise MapError(
                f"map failed on the batch at epoch {ticket.epoch}, position {ticket.start} "
                f"(its first sample is row {row} of {path}): {type(error).__name__}: {error}"
            ) from error
        return mapped


def _spans(tickets: Sequence[Ticket]) -> list[tuple[int, int]]:
    """The positions of the tickets' rows; those of a single rank follow each other."""
    spans: list[tuple[int, int]] = []
    for ticket in tickets:
        if spans and spans[-1][1] == ticket.start:
            spans[-1] = (spans[-1][0], ticket.stop)
        else:
            spans.append((ticket.start, ticket.stop))
    return spans
