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


def benches(place: Path) -> list[dict[str, Any]]:
    notes = [json.loads(line) for path in place.glob("*.notes") for line in path.read_text().splitlines()]
    return [note for note in notes if note["note"] == "bench"]


@pytest.mark.parametrize("batch_size", [4, None])
def test_other_numbers_of_workers_are_tried_on_a_stream_and_its_own_pass_goes_on(
    tmp_path: Path, batch_size: int | None
) -> None:
    recorder = Recorder(tmp_path)
    loader: DataLoader[int] = DataLoader(Replayed(3000), batch_size, num_workers=1)
    readings = Readings(torch, recorder)
    assert not readings.can(loader, "bench")
    assert readings.can(loader, "rate")

    passing = iter(loader)
    came = [next(passing)]
    readings.run("rate", passing, loader, Orders(), 0.001)
    came += list(passing)

    recorder.flush()
    tried = benches(tmp_path)
    assert {one["name"] for one in tried} == {"cores", "as is"}
    assert all(one["trouble"] is None and one["seconds"] for one in tried)
    assert sorted(torch.cat([torch.as_tensor(one).reshape(-1) for one in came]).tolist()) == list(range(3000))


def test_a_stream_that_the_main_process_reads_is_left_alone(tmp_path: Path) -> None:
    readings = Readings(torch, Recorder(tmp_path))
    loader: DataLoader[int] = DataLoader(Replayed(10))
    assert not readings.can(loader, "bench")
    assert not readings.can(loader, "rate")


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
