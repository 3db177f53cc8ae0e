"""`stoker.BlockSampler`: the loader's order for people who keep their DataLoader."""

from collections.abc import Iterator, Sequence
from typing import Any

from torch.utils.data import Sampler

from stoker.errors import NoDataError, OtherSourceError
from stoker.loader import check, ranks
from stoker.loader.order import Order
from stoker.loader.ranks import Split
from stoker.loader.source.blocks import SizedBlocks


class BlockSampler(Sampler[Any]):
    """Indices in block order: blocks permuted, `window` of them mixed at a time, every index exactly once.

        sampler = stoker.BlockSampler([8000] * 660, window=8)        # files of 8,000 rows, eight in memory
        loader = DataLoader(dataset, batch_size=256, sampler=sampler)

    With `batch_size`, it is a batch sampler (`DataLoader(dataset, batch_sampler=sampler)`) whose batches never reach
    over the end of a window, so that a dataset needs to keep only the current window's blocks open.
    """

    def __init__(
        self,
        block_sizes: Sequence[int],
        *,
        window: int = 1,
        seed: int = 0,
        shuffle: bool = True,
        batch_size: int | None = None,
        drop_last: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        check.whole("window", window, 1)
        check.whole("seed", seed, 0)
        if not block_sizes:
            raise NoDataError("block_sizes is empty; give the number of rows of each file or row group")
        for size in block_sizes:
            check.whole("a block size", size, 1)
        if batch_size is not None:
            check.whole("batch_size", batch_size, 1)
        self.rank, self.world_size = ranks.detect(rank, world_size)
        self._order = Order(SizedBlocks(block_sizes), window_blocks=window, seed=seed, shuffle=shuffle)
        self._batch_size = batch_size
        self._drop_last = drop_last
        self._next = self._at = (0, 0)
        ranks.warn_if_uneven(split for _, split in self._splits())

    def set_epoch(self, epoch: int) -> None:
        """Let the next iterator deliver this epoch. Without it, epochs count up by themselves."""
        check.whole("epoch", epoch, 0)
        position = self._next[1] if epoch == self._next[0] else 0  # of a state that was just loaded
        self._next = self._at = (epoch, position)

    def state_dict(self) -> dict[str, Any]:
        """Behind the last index that was drawn: a DataLoader with workers draws ahead of what it delivers."""
        return {"epoch": self._at[0], "position": self._at[1], "order": self._settings()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next iterator deliver the rest, on any number of ranks."""
        if not isinstance(state, dict) or state.get("order") != self._settings():
            taken = state.get("order") if isinstance(state, dict) else state
            raise OtherSourceError(f"the state was taken with {taken}; this sampler has {self._settings()}")
        for name in ("epoch", "position"):
            check.whole(f"the state's {name}", state.get(name), 0)
        self._next = self._at = (state["epoch"], state["position"])
        rest = (split.after(max(0, state["position"] - start)) for start, split in self._splits())
        ranks.warn_if_uneven(rest)

    def _settings(self) -> dict[str, Any]:
        order = self._order
        return {
            "rows": order.blocks.rows,
            "blocks": order.blocks.count,
            "window": order.window_blocks,
            "seed": order.seed,
            "shuffle": order.shuffle,
        }

    def _splits(self) -> Iterator[tuple[int, Split]]:
        """Parts of an epoch that batches stay inside, and how each is split: windows, or all of it."""
        rows = self._order.blocks.rows
        if self._batch_size is None:
            yield 0, Split(rows, 1, self._drop_last, self.rank, self.world_size)
            return
        epoch = self._order.epoch(self._at[0])
        for index in range(self._order.windows):
            start = epoch.start(index)
            stop = epoch.start(index + 1) if index + 1 < self._order.windows else rows
            yield start, Split(stop - start, self._batch_size, self._drop_last, self.rank, self.world_size)

    def __len__(self) -> int:
        return sum(split.count() for _, split in self._splits())

    def __iter__(self) -> Iterator[Any]:
        number, position = self._at = self._next
        parts = list(self._splits())
        self._next = (number + 1, 0)
        epoch = self._order.epoch(number)
        window = epoch.window(epoch.find(min(position, self._order.blocks.rows - 1)))
        for start, split in parts:
            for ticket in split.epoch(number, max(0, position - start)):
                first = start + ticket.start
                while first >= window.stop:
                    window = epoch.window(epoch.find(first))
                rows = window.rows(first, start + ticket.stop).tolist()
                self._at = (number, start + ticket.after)
                yield rows[0] if self._batch_size is None else rows
        self._at = self._next
