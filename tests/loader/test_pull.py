"""Pieces of a store that several threads and several loaders take: each asked for once, each loader closed alone."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stoker
from loader import scans, sources
from loader.sources import access
from stoker import errors
from stoker.loader.front import Loader
from stoker.loader.hold import Hold
from stoker.loader.scratch import Scratch
from stoker.loader.source import listing
from stoker.loader.source.counters import Counters
from stoker.loader.source.limit import Limit
from stoker.loader.source.pull import Pull
from stoker.sim.store import Store

LATENCY_S = 1.0


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    (tmp_path / "bucket").mkdir()
    (tmp_path / "bucket" / "a").write_bytes(b"x" * 1000)
    return tmp_path / "bucket"


@pytest.fixture
def pull(bucket: Path) -> Iterator[Pull]:
    with Store(bucket, latency_s=LATENCY_S) as store:
        listed = listing.opened(f"s3://{store.bucket}/", "test", [""], store_options=access(store))
        found = Pull(listed.remote, listed.listed, None, limit=Limit(8, hedge=False), counters=Counters())
        yield found
        found.close()


class Taker(threading.Thread):
    """A thread that takes piece 0, for a stream."""

    def __init__(self, pull: Pull, hold: Hold) -> None:
        super().__init__(daemon=True)
        self.pull, self.hold, self.got = pull, hold, []
        self.start()

    got: list[Any]

    def run(self) -> None:
        try:
            with self.hold.at_work():
                self.got.append(bytes(self.pull.take(0, Scratch())))
        except errors.ClosedError as error:
            self.got.append(error)


@pytest.mark.parametrize("ahead", [True, False])
def test_a_piece_that_several_threads_wait_for_is_asked_for_once(pull: Pull, ahead: bool) -> None:
    takers = []
    for _ in range(4):
        if ahead:
            pull.soon([0])
        takers.append(Taker(pull, Hold()))
    for taker in takers:
        taker.join(30)
    assert [taker.got for taker in takers] == [[b"x" * 1000]] * 4
    assert pull._counters.requests == 1
    assert not pull._taken
    assert not pull._wants
    again = Taker(pull, Hold())  # nobody has it any more
    again.join(30)
    assert again.got == [b"x" * 1000]
    assert pull._counters.requests == 2


def test_closing_a_stream_wakes_those_who_wait_for_it_and_nobody_else(pull: Pull) -> None:
    holds = Hold(), Hold()
    first, second = (Taker(pull, hold) for hold in holds)
    first.join(LATENCY_S / 4)
    holds[0].close()
    first.join(30)
    assert isinstance(first.got[0], errors.ClosedError)
    late = Taker(pull, holds[0])  # it was about to wait when the stream was closed
    late.join(30)
    assert isinstance(late.got[0], errors.ClosedError)
    second.join(30)
    assert second.got == [b"x" * 1000]
    assert pull._counters.requests == 1


@pytest.mark.parametrize("kind", ["npy", "zarr", "tif"])
@pytest.mark.parametrize("threads", [0, 2])
def test_of_two_loaders_over_one_source_each_is_closed_alone(bucket: Path, kind: str, threads: int) -> None:
    sources.npy(bucket / "npy", [40]).close()
    array = np.ones((8, 8, 8), np.uint16)
    scans.write_zarr(bucket / "zarr" / "a.zarr", array)
    scans.write_tiff(bucket / "tif" / "a.tif", array, photometric="minisblack")
    how: dict[str, Any] = {"cache": bucket.parent / "cache"} | ({} if kind == "npy" else {"patch": (2, 2, 2)})
    if kind == "tif":
        how.pop("cache")  # it would have all of it once its tags are read
    with Store(bucket) as quick:
        source = stoker.open(f"s3://{quick.bucket}/{kind}/", store_options=access(quick), **how)
        port = quick._port
    store = Store(bucket, latency_s=60, port=port)
    with store:  # the same address, and slow
        loaders = [Loader(source, 4, threads=threads) for _ in range(2)]
        told: list[list[BaseException]] = [[], []]

        def wait(number: int) -> None:
            try:
                next(iter(loaders[number]))
            except errors.ClosedError as error:
                told[number].append(error)

        waiting, own = [], []
        for number in range(2):
            before = set(threading.enumerate())
            waiting.append(threading.Thread(target=wait, args=(number,), daemon=True))
            waiting[-1].start()
            waiting[-1].join(0.5)
            fetching = {one for one in set(threading.enumerate()) - before if one.name == "stoker-fetch"}
            own.append({waiting[-1], *fetching})
        loaders[0].close()
        waiting[0].join(30)
        assert [len(one) for one in told] == [1, 0]
        assert not [one for one in own[0] if one.is_alive()]
        assert all(one.is_alive() for one in own[1])
        loaders[1].close()
        waiting[1].join(30)
        assert [len(one) for one in told] == [1, 1]
        assert not [one for one in own[1] if one.is_alive()]
