"""Threads that make batches ahead: some rest while the consumer is slow, and nobody is forgotten."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stoker

ROWS = 4_000
LATE_S = 20.0


@pytest.mark.timeout(10 * LATE_S)
def test_threads_that_rest_are_not_woken_in_place_of_one_that_works(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((ROWS, 4096), np.float32))
    with stoker.Loader(stoker.open(str(tmp_path)), batch_size=4, shuffle=True, threads=8, memory="1MiB") as loader:
        rows = sum(_slowly(loader))
        assert (rows, loader.stats().threads) == (ROWS, 1)
        assert sum(len(batch["data"]) for batch in loader) == ROWS


def _slowly(loader: stoker.Loader) -> Any:
    """The rows of each batch of an epoch, for a consumer that never has to wait."""
    batches: Any = iter(loader)
    stream = batches._stream  # noqa: SLF001  nothing else tells that a batch is ready
    for _ in range(len(loader)):
        until = time.monotonic() + LATE_S
        while stream._taken not in stream._made:  # noqa: SLF001
            assert time.monotonic() < until, "no batch is ready, and no thread makes one"
            time.sleep(0.0005)
        yield len(next(batches)["data"])
