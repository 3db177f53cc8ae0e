"""Readings of the user's data set by loaders of our own."""

import json
import mmap
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, get_worker_info, random_split

from stoker.observe import workers
from stoker.observe.patches import Patches
from stoker.observe.probe_bench import Orders
from stoker.observe.probe_counts import files_read
from stoker.observe.probe_gather import about
from stoker.observe.probe_reading import Readings
from stoker.observe.recorder import Recorder


class Replayed(IterableDataset[int]):
    """A log that is read from its start by every worker, which keeps its own share."""

    def __init__(self, samples: int) -> None:
        self.log = iter(range(samples))

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        assert info is not None
        return (i for i in self.log if i % info.num_workers == info.id)


def notes(place: Path, kind: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for path in place.glob("*.notes") for line in path.read_text().splitlines()]
    return [note for note in found if note["note"] == kind]


def benches(place: Path) -> list[dict[str, Any]]:
    return notes(place, "bench")


def not_called(count: int) -> int:
    raise AssertionError(count)


@pytest.mark.parametrize("batch_size", [4, None])
def test_other_numbers_of_workers_are_tried_on_a_stream_and_its_own_pass_goes_on(
    tmp_path: Path, batch_size: int | None
) -> None:
    recorder = Recorder(tmp_path)
    loader: DataLoader[int] = DataLoader(Replayed(3000), batch_size, num_workers=1)
    readings = Readings(torch, recorder)
    assert readings.can(loader, "bench")
    assert readings.can(loader, "rate")

    passing = iter(loader)
    came = [next(passing)]
    for name in ("bench", "rate"):
        readings.run(name, passing, loader, Orders(), 0.001, not_called)
    came += list(passing)

    recorder.flush()
    looked, *tried = benches(tmp_path)
    assert (looked["name"], looked["labels"], looked["trouble"]) == ("one", ["warm", "text", "profile"], None)
    assert {one["name"] for one in tried} == {"cores", "as is"}
    assert all(one["trouble"] is None and one["seconds"] for one in tried)
    assert sorted(torch.cat([torch.as_tensor(one).reshape(-1) for one in came]).tolist()) == list(range(3000))


class Letters(IterableDataset[tuple[int, ...]]):
    """Text that becomes integers on its way."""

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        for i in range(20):
            yield encode(f"{i} " + "some words of a letter " * 50)


def encode(text: str) -> tuple[int, ...]:
    return tuple([int(text.split(maxsplit=1)[0]), *(len(word) for word in text.split())][:8])


def test_a_stream_that_the_main_process_reads_is_looked_at_and_the_loop_misses_nothing(tmp_path: Path) -> None:
    recorder, patches = Recorder(tmp_path), Patches()
    readings = Readings(torch, recorder)
    loader: DataLoader[tuple[int, ...]] = DataLoader(Letters(), 4)
    assert readings.can(loader, "bench")
    assert not readings.can(loader, "rate")
    workers.install(torch, recorder, patches)
    try:
        passing = iter(loader)
        held: list[Any] = []

        def ahead(count: int) -> int:
            held.extend(next(passing) for _ in range(count))
            return len(held)

        first = next(passing)
        readings.run("bench", passing, loader, Orders(), 0.001, ahead)
        came = [first, *held, *passing]
    finally:
        patches.restore()
    recorder.flush()
    (looked,) = benches(tmp_path)
    assert (looked["workers"], looked["batches"], looked["trouble"]) == (0, 2, None)
    followed, profiled = notes(tmp_path, "making")
    assert followed["text_s"] > 0
    assert followed["text_place"].endswith(" encode")
    assert profiled["calls"] > 0
    assert torch.cat([batch[0] for batch in came]).tolist() == list(range(20))


class Rows(Dataset[int]):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> int:
        return index


class Batches(Rows):
    def __getitems__(self, indices: list[int]) -> list[int]:
        return indices


@pytest.mark.parametrize(("data", "batched"), [(Rows(), False), (Batches(), True)])
def test_a_part_of_a_data_set_fetches_batches_if_the_whole_does(data: Rows, batched: bool) -> None:
    first, _ = random_split(data, [15, 5])
    for part in (data, first, Subset(first, range(4))):
        assert about(DataLoader(part, 2))["batched_fetch"] is batched


def test_programs_are_no_data_wherever_they_lie(tmp_path: Path) -> None:
    data = tmp_path / "train.bin"
    library = tmp_path / "env" / "site-packages" / "tables.bin"
    library.parent.mkdir(parents=True)
    for path in (data, library, tmp_path / "libfast.so.3"):
        path.write_bytes(bytes(mmap.PAGESIZE))
    with ExitStack() as held:
        for path in (data, library, tmp_path / "libfast.so.3"):
            file = held.enter_context(path.open("rb"))
            held.enter_context(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        assert [name for name in files_read() if name.startswith(str(tmp_path))] == [str(data)]
