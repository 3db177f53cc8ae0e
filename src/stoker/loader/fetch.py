"""One batch out of ready windows: its rows picked, failed blocks left out, gathered and mapped."""

import threading
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from stoker.errors import DataError, MapError
from stoker.loader.device import Copier
from stoker.loader.ranks import Ticket
from stoker.loader.source.blocks import Ints
from stoker.loader.source.interface import BadRowsError, Batch, Lease, Pick, Place, Reader, Skipped, Source
from stoker.loader.windows import Ready

OnError = Literal["raise", "skip"]
_SKIPPED_LISTED = 1000


class Batches:
    """Makes one batch out of ready windows; called by many threads at once."""

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
        self._noting = threading.Lock()
        self._bad_blocks: set[int] = set()
        self.skipped: list[Skipped] = list(source.skipped)
        self.skipped_rows = sum(skipped.rows for skipped in source.skipped)

    def make(self, ticket: Ticket, windows: list[Ready], reader: Reader | None = None) -> Any:
        """The batch, or None if every row of it had to be left out."""
        pick = self._pick(ticket, windows)
        if any(ready.failed for ready in windows):
            pick = self._without_failed(pick, [one for ready in windows for one in ready.loaded])
        gathered = None
        while gathered is None and len(pick.rows):
            try:
                gathered = (reader or self._source).gather(pick, self._lease)
            except BadRowsError as bad:
                pick = self._without_bad(pick, bad)
        if gathered is None:
            return None
        self._seen(pick.rows)
        batch = self._shape(gathered)
        made = batch if self._map is None else self._mapped(batch, ticket, pick)
        return made if self._copier is None else self._copier.start(made)

    def deliver(self, made: Any) -> Any:
        """What the consumer gets; called in its thread."""
        return made if self._copier is None or made is None else self._copier.finish(made)

    def _pick(self, ticket: Ticket, windows: list[Ready]) -> Pick:
        parts, slots, place = [], 0, Place()
        for ready in windows:
            if ready.error is not None:
                raise ready.error
            window = ready.window
            assert window is not None
            place = Place(window.key[0], ticket.epoch, ticket.start)
            slot, inner = window.place(max(ticket.start, window.start), min(ticket.stop, window.stop))
            parts.append((window.first[slot] + inner, slot + slots, inner))
            slots += len(window.blocks)
        held = [ready.stacked for ready in windows]
        if len(parts) == 1:
            return Pick(*parts[0], held, place)
        rows, slot, inner = (np.concatenate(column) for column in zip(*parts, strict=True))
        return Pick(rows, slot, inner, held, place)

    def _without_failed(self, pick: Pick, loaded: list[Any]) -> Pick:
        failed = [slot for slot in np.unique(pick.slot).tolist() if isinstance(loaded[slot], BaseException)]
        if not failed:
            return pick
        error = loaded[failed[0]]
        if self._on_error == "raise" or not isinstance(error, DataError):
            raise error
        keep = ~np.isin(pick.slot, failed)
        with self._noting:
            for slot in failed:
                self._note(int(pick.rows[pick.slot == slot][0]), loaded[slot])
            self.skipped_rows += int((~keep).sum())
        return pick.where(keep)

    def _without_bad(self, pick: Pick, bad: BadRowsError) -> Pick:
        if self._on_error == "raise":
            raise next(iter(bad.errors.values())) from None
        keep = np.ones(len(pick.rows), bool)
        keep[list(bad.errors)] = False
        with self._noting:
            for at, error in bad.errors.items():
                self._note(int(pick.rows[at]), error)
            self.skipped_rows += len(bad.errors)
        return pick.where(keep)

    def _note(self, row: int, error: DataError) -> None:
        block = int(self._source.blocks.of(np.array([row]))[0])
        if block not in self._bad_blocks and len(self.skipped) < _SKIPPED_LISTED:
            self._bad_blocks.add(block)
            rows = int(self._source.blocks.sizes(np.array([block]))[0])
            self.skipped.append(Skipped(error.path, error.row or 0, rows, error.reason))

    def _mapped(self, batch: Batch, ticket: Ticket, pick: Pick) -> Any:
        assert self._map is not None
        try:
            return self._map(batch)
        except Exception as error:
            path, row = self._source.locate(int(pick.rows[0]))
            raise MapError(
                f"map failed on the batch at epoch {ticket.epoch}, position {ticket.start} "
                f"(its first sample is row {row} of {path}): {type(error).__name__}: {error}"
            ) from error
